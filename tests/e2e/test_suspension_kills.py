"""Each part is killed with SIGKILL at each step of suspensions and resumptions; the claim ends where it should.

One program keeps its data in GPU memory over all of it. The short run kills each part at one of the steps, so that all
steps are met; the long run kills each part at each step, three times.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.claims import Claims
from tests.e2e.test_chaos import LONG, insist, wait_for
from tests.e2e.test_suspended_data import Chain, chain
from tests.platform import Json, Platform, until

pytestmark = [pytest.mark.serial, pytest.mark.timeout(900)]

# After the order was answered; while the driver is called; when it is observed.
STEPS = ("suspend ordered", "suspend called", "suspended", "resume ordered", "resume called")
PARTS = ("server", "worker", "scheduler", "postgres", "valkey", "agent", "helper")
# Out in 0.8 s, back in 0.4.
MIB = 2048


@pytest.fixture
def claims(platform: Platform, tmp_path: Path) -> Iterator[Claims]:
    made = Claims(platform, tmp_path)
    try:
        yield made
    finally:
        made.end()


class Life:
    """A claim with a program, and the part that is killed."""

    def __init__(self, claims: Claims, log: Path, part: str) -> None:
        self.claims, self.platform, self.part = claims, claims.platform, part
        claim = claims.ask(core_request=30, memory_mib=2 * MIB)
        self.uid, self.place = claim["uid"], claim["assignments"][0]
        self.agent = f"agent-{self.place['node']}"
        self.program = Chain(claims, self.uid, log, mib=MIB)
        until(lambda: self.program.rounds() > 20, what="the program to work")

    def helpers(self) -> list[int]:
        """Return the helper processes of the claim's agent."""
        agent, found = self.platform.pid(self.agent), []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, ValueError, IndexError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == agent and b"suspend/helper.py" in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
        return found

    def meet(self, step: str, wanted: str) -> None:
        """Kill the part if this is the step at which it is to die."""
        if step != wanted or (self.part == "helper" and "called" not in step):
            return
        found = until(self.helpers, what="a helper that calls the driver") if "called" in step else []
        if self.part == "program":
            self.program.process.kill()
        elif self.part == "helper":
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        else:
            self.platform.kill(self.agent if self.part == "agent" else self.part)

    def cycle(self, wanted: str) -> None:
        """Suspend and resume once, with the part killed at the step wanted; every amount is where it should be."""
        insist(self.platform, "POST", f"claims/{self.uid}/suspend/")
        self.meet("suspend ordered", wanted)
        self.meet("suspend called", wanted)
        wait_for(self.platform, self.uid, "suspended")
        self.meet("suspended", wanted)
        stood, claim = self.program.rounds(), wait_for(self.platform, self.uid, "suspended")
        assert claim["host_memory_mib"] >= MIB
        assert self.host_memory() == claim["host_memory_mib"]
        assert self.used("core_percent") == 0
        insist(self.platform, "POST", f"claims/{self.uid}/resume/")
        self.meet("resume ordered", wanted)
        self.meet("resume called", wanted)
        back = wait_for(self.platform, self.uid, "active")
        assert back["assignments"][0]["gpu_uuid"] == self.place["gpu_uuid"]
        until(lambda: self.claims.read(self.uid)["host_memory_mib"] == 0, what="the host memory to be free")
        assert self.host_memory() == 0
        assert self.used("core_percent") == 30
        until(lambda: self.program.rounds() > stood + 20, what="the program to go on")

    def host_memory(self) -> int:
        node: Json = insist(self.platform, "GET", f"nodes/{self.place['node']}/").body
        return int(node["host_memory_used_mib"])

    def used(self, resource: str) -> int:
        return int(self.platform.used(self.claims.tenant)[resource])


def chosen(part: str) -> tuple[str, ...]:
    """Return one of the steps for the short run; of all parts together, each is met."""
    return (STEPS[1] if part == "helper" else STEPS[PARTS.index(part) % len(STEPS)],)


MATRIX: list[Any] = [
    *(pytest.param(part, chosen(part), id=f"{part}-short") for part in PARTS),
    *(pytest.param(part, STEPS * 3, id=f"{part}-long", marks=LONG) for part in PARTS),
]


@pytest.mark.parametrize(("part", "steps"), MATRIX)
def test_a_claim_ends_where_it_should_whatever_part_is_killed(
    claims: Claims, tmp_path: Path, part: str, steps: tuple[str, ...]
) -> None:
    life = Life(claims, tmp_path / "chain.log", part)
    for step in steps:
        life.cycle(step)
    last = life.program.end()
    assert last["link"] == chain(int(str(last["rounds"])))


@pytest.mark.parametrize("step", [*(pytest.param(step, marks=LONG) for step in STEPS[:4]), STEPS[4]])
def test_a_program_that_is_killed_leaves_nothing_charged(claims: Claims, tmp_path: Path, step: str) -> None:
    life = Life(claims, tmp_path / "chain.log", "program")
    insist(life.platform, "POST", f"claims/{life.uid}/suspend/")
    for at in STEPS[:2]:
        life.meet(at, step)
    wait_for(life.platform, life.uid, "suspended")
    life.meet(STEPS[2], step)
    insist(life.platform, "POST", f"claims/{life.uid}/resume/")
    for at in STEPS[3:]:
        life.meet(at, step)
    wait_for(life.platform, life.uid, "active")
    assert life.program.process.wait(10) == -signal.SIGKILL
    until(lambda: life.host_memory() == 0, what="the host memory to be free")
    assert life.used("core_percent") == 30
