"""Programs that do not fit together share a GPU by time: each goes on with its data, whatever is killed meanwhile."""

import subprocess
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from apps.suspension.rotation import measured
from apps.suspension.rotation.planning import SLICES_OF_A_SWAP
from tests.claims import Claims
from tests.e2e.test_suspended_data import Chain, chain
from tests.platform import ROOT, Platform, until

pytestmark = [pytest.mark.serial, pytest.mark.timeout(900)]
GIB = 1024
SLICE_SECONDS = 10
SIMNODE = ROOT / "libvcuda" / "build" / "simnode"
# A crowded machine's swaps take seconds, and its slices ten times as long.
PATIENCE = 300
# Each look reads all claims, for minutes, and a slice lasts ten seconds.
wait = partial(until, longest_pause=1.0)


@pytest.fixture
def claims(tmp_path: Path, gpus: int) -> Iterator[Claims]:
    """Start a platform whose node in the pool `default` has so many GPUs of 80 GiB."""
    state = tmp_path / "demo"
    node = state / "nodes" / "sim-1"
    for directory in (state, node.parent, node):
        directory.mkdir(mode=0o700)
    create = [str(SIMNODE), "create", str(node / "node.sim"), "--name", "sim-1"]
    create += ["--gpus", str(gpus), "--memory", "80GiB"]
    subprocess.run(create, check=True, capture_output=True)
    with Platform(state) as platform:
        platform.granted("PATCH", "pools/default/", {"oversubscribe": 3, "slice_seconds": SLICE_SECONDS})
        made = Claims(platform, tmp_path)
        made.tenant = platform.new_tenant("rotates", core=10_000, memory_mib=400 * GIB)
        try:
            yield made
        finally:
            made.end()


class Rotating:
    """Claims of 60 GiB with a program each, which begins when its claim comes in."""

    def __init__(self, claims: Claims, directory: Path, count: int) -> None:
        self.claims, self.directory = claims, directory
        self.programs: dict[str, Chain] = {}
        body = {"core_request": 100, "memory_mib": 60 * GIB}
        self.uids = [claims.ask(wait=0, name=f"rotates-{number}", **body)["uid"] for number in range(count)]

    def look(self) -> dict[str, Any]:
        """Return the claims, and start the programs of those that have come in."""
        found = {uid: self.claims.read(uid) for uid in self.uids}
        for uid, claim in found.items():
            if claim["state"] == "active" and uid not in self.programs:
                self.programs[uid] = Chain(self.claims, uid, self.directory / f"{uid}.log")
        return found

    def times_in(self) -> list[int]:
        """Return how often each was in."""
        return [sum(1 for step in claim["timeline"] if step["state"] == "active") for claim in self.look().values()]

    def all_run(self) -> bool:
        """Return True once each program has said something."""
        return set(self.programs) == set(self.uids) and all(one.said() for one in self.programs.values())

    def timeline(self, uid: str) -> list[list[str]]:
        return [[step["state"], step["at"]] for step in self.claims.read(uid)["timeline"]]

    def slices(self, uid: str) -> list[float]:
        """Return how long each of its slices was that is over."""
        found = []
        for before, after in pairwise(self.timeline(uid)):
            if (before[0], after[0]) == ("active", "suspending"):
                found.append((datetime.fromisoformat(after[1]) - datetime.fromisoformat(before[1])).total_seconds())
        return found


@pytest.mark.parametrize("gpus", [1])
def test_three_programs_of_60_gib_share_a_gpu_of_80(claims: Claims, tmp_path: Path) -> None:
    rotating, platform = Rotating(claims, tmp_path, 3), claims.platform
    wait(lambda: min(rotating.times_in()) >= 1, seconds=PATIENCE, what="each to be in once")
    wait(lambda: rotating.look() and rotating.all_run(), seconds=PATIENCE, what="each program to run")

    # Killed in between: the worker, which runs the rotation, and the agent, which moves the programs.
    for part in ("worker", "agent-sim-1"):
        before = sum(rotating.times_in())
        platform.kill(part)
        wait(lambda before=before: sum(rotating.times_in()) > before, seconds=PATIENCE, what=f"a swap after {part}")
    wait(lambda: min(rotating.times_in()) >= 2, seconds=PATIENCE, what="each to be in twice")

    # Each slice was as long as asked for, and ten times as long as the moves that were measured before it.
    lengths = {uid: rotating.slices(uid) for uid in rotating.uids}
    assert all(lengths.values())
    assert min(min(found) for found in lengths.values()) >= SLICE_SECONDS - 0.5
    for uid in rotating.uids:
        timeline = rotating.timeline(uid)
        out = measured.seconds_out(timeline)
        assert out is not None
        assert SLICES_OF_A_SWAP * out <= 2 * max(lengths[uid]), "a swap is a small part of a slice"

    # Served alike, within a slice.
    served = [claim["rotation"]["served_gpu_seconds"] for claim in rotating.look().values()]
    longest = max(max(found) for found in lengths.values())
    assert max(served) - min(served) <= 2 * longest + SLICE_SECONDS

    # One is in at a time, and who is out holds no GPU.
    found = rotating.look().values()
    assert sum(1 for claim in found if claim["state"] == "active") <= 1
    assert platform.used(claims.tenant)["core_percent"] <= 200

    end_and_compare(rotating)


@pytest.mark.long
@pytest.mark.parametrize("gpus", [2])
@pytest.mark.parametrize(("count", "times"), [(3, 2), (5, 3)])
def test_programs_share_two_gpus_and_some_are_on_both(claims: Claims, tmp_path: Path, count: int, times: int) -> None:
    """A claim that is out comes in where a slice is over first: all have equal times, and keep their data."""
    rotating, platform = Rotating(claims, tmp_path, count), claims.platform
    seen: dict[str, set[str]] = {uid: set() for uid in rotating.uids}

    def look() -> int:
        for uid, claim in rotating.look().items():
            if claim["state"] == "active":
                seen[uid].update(item["gpu_uuid"] for item in claim["assignments"])
        return min(rotating.times_in())

    wait(lambda: look() >= times - 1, seconds=2 * PATIENCE, what=f"each to be in {times - 1} times")
    # A program that is about to start needs the agent.
    wait(lambda: look() and rotating.all_run(), seconds=PATIENCE, what="each program to run")
    platform.kill("agent-sim-1")
    wait(lambda: look() >= times, seconds=2 * PATIENCE, what=f"each to be in {times} times")
    assert any(len(gpus) == 2 for gpus in seen.values()), "some came back on another GPU"
    served = [claim["rotation"]["served_gpu_seconds"] for claim in rotating.look().values()]
    longest = max(max(rotating.slices(uid), default=0.0) for uid in rotating.uids)
    assert max(served) - min(served) <= 2 * longest + SLICE_SECONDS
    assert sum(1 for claim in rotating.look().values() if claim["state"] == "active") <= 2
    end_and_compare(rotating)


def end_and_compare(rotating: Rotating) -> None:
    """End each program once it is in; each has its data, and its steps, and nothing is charged in the end."""
    claims = rotating.claims
    platform = claims.platform
    platform.granted("PATCH", "pools/default/", {"oversubscribe": None})
    for _ in rotating.uids:
        uid = wait(lambda: active(rotating), seconds=PATIENCE, what="a program to be in")
        last = rotating.programs[uid].end()
        assert int(str(last["rounds"])) > 100
        assert last["link"] == chain(int(str(last["rounds"])))
        platform.granted("DELETE", f"claims/{uid}/?wait=60")
    node = platform.granted("GET", "nodes/sim-1/")
    assert node["host_memory_used_mib"] == 0
    assert set(platform.used(claims.tenant).values()) == {0}


def active(rotating: Rotating) -> str | None:
    """Return a claim whose program can be ended."""
    found = rotating.look()
    return next((uid for uid, claim in found.items() if claim["state"] == "active"), None)
