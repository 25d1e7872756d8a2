"""Claims that exceed their share are found by NVML's account; those at their limit never are."""

import os
import shutil
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent import wire
from agent.claims import shares
from agent.claims.audit import Audit
from agent.claims.auditor import Auditor
from agent.claims.claim import gpu_key
from agent.claims.pages import LimitsPage
from agent.claims.shares import _Reading, bound, over
from agent.claims.usage import Accounted
from agent.host import processes
from agent.host.gpus import Listed
from tests.agent.control import Connection
from tests.agent.stage import GPULOAD, Stage, eventually
from tests.agent.test_audit import reported_codes
from tests.agent.test_limits import load

SECONDS = shares.WINDOW_SECONDS + 15.0


def forge(stage: Stage, held: wire.Assignment) -> Path:
    """Forge a claim's directory as its tenant could: the real usage page, so that it has a slot, and no limit."""
    directory, real = stage.run_dir / "forged", stage.claim_dir(held)
    directory.mkdir()
    shutil.copy(real / "limits", directory / "limits")
    os.link(real / "usage", directory / "usage")
    page = LimitsPage(stage.library, directory, held.claim_uid)
    (slot,) = page.slots()
    page.set(slot._replace(core_request=100, core_limit=100))
    page.unmap()
    return directory


async def cheat(stage: Stage, held: wire.Assignment, directory: Path) -> Any:
    """Start a program with a slot in the claim's page that keeps to limits of its own making."""
    before = stage.totals(held).processes
    variables = (f"GPUCLOUD_CLAIM_DIR={directory}",)
    program = stage.exec(held.claim_uid, "env", *variables, str(GPULOAD), "--json", "--kernel-us", "1000")
    await eventually(lambda: program.poll() is not None or stage.totals(held).processes > before)
    assert program.poll() is None, program.stderr.read()
    return program


async def test_who_launches_past_the_meter_is_found_and_who_is_at_the_limit_is_not(
    stage: Stage, link: Connection
) -> None:
    bad_claim = stage.assignment(core_request=20, core_limit=20)
    # Two that share a GPU: NVML reports too much for one of them.
    good = [stage.assignment(gpu=1, core_request=30, core_limit=30) for _ in range(2)]
    claims = [bad_claim, *good]
    await link.send(wire.Desired(frame=1, assignments=claims))
    for held in claims:
        await link.state(held.uid, "in_force", 1)
    honest = [await load(stage, held, "--kernel-us", "1000") for held in good]
    bad = await cheat(stage, bad_claim, forge(stage, bad_claim))

    def is_it(event: wire.Event) -> bool:
        return event.code == "core-over-limit" and event.process is not None and event.process.pid == bad.pid

    event = await link.expect(wire.Event, is_it, seconds=SECONDS)
    assert "may use 20 %" in event.detail
    assert event.process is not None
    assert event.process.claim_uid == bad_claim.claim_uid
    # It has a slot: nothing else finds it.
    assert reported_codes(link, bad.pid) == ["core-over-limit"]
    # Claims within their limits are never reported, whatever is decided about it (a minute later, below).
    assert [(reported_codes(link, one.pid), one.poll()) for one in honest] == [([], None)] * 2


def readings(*percents: float, limit: int = 20, every: float = 0.5) -> list[_Reading]:
    return [_Reading(number * every, percent, limit) for number, percent in enumerate(percents)]


@pytest.mark.parametrize(
    ("seen", "is_over"),
    [
        pytest.param(readings(*[100] * 21), True, id="all of it"),
        pytest.param(readings(*[41] * 21), True, id="a little above the bound"),
        pytest.param(readings(*[24] * 21), False, id="at its limit, as NVML tells it at worst"),
        pytest.param(readings(*[40] * 21), False, id="at the bound"),
        pytest.param(readings(*[100] * 20), False, id="not for long enough"),
        pytest.param(readings(*[100] * 11, *[30] * 10), False, id="one half only"),
        pytest.param(readings(*[100] * 4, every=4.0), False, id="too few readings"),
        pytest.param(
            [*readings(*[50] * 11, limit=50), *[_Reading(5.5 + n / 2, 50, 20) for n in range(10)]], False,
            id="its limit was lowered a moment ago",
        ),
    ],
)  # fmt: skip
def test_only_what_is_far_above_for_long_counts(seen: list[_Reading], is_over: bool) -> None:
    assert (over(seen) is not None) is is_over


def test_of_a_limit_that_the_margin_takes_past_the_whole_gpu_nothing_is_said() -> None:
    assert bound(59) < 100 <= bound(60)


@pytest.mark.parametrize(("alone", "is_over"), [(20, True), (100, False)])
def test_who_may_burst_is_judged_by_what_it_may_use_alone(alone: int, is_over: bool) -> None:
    gpu = "GPU-00000000-0000-0000-0000-000000000000"
    runtime: Any = SimpleNamespace(occupant=lambda key: "an assignment", alone_percent=lambda uid: alone)
    ours, found = shares.Shares(), {}
    for second in range(11):
        # Two processes of one claim count together; a third belongs to no claim.
        measured = {gpu: {1: 30.0, 2: 30.0, 3: 40.0}}
        found = ours.take(measured, {("claim", gpu): [1, 2]}, {"claim": runtime}, now=float(second))
    assert [round(one.percent) for one in found.values()] == ([60] if is_over else [])


def test_where_nvml_has_nothing_new_nobody_is_judged() -> None:
    gpu = "GPU-00000000-0000-0000-0000-000000000000"
    runtime: Any = SimpleNamespace(occupant=lambda key: "an assignment", alone_percent=lambda uid: 20)
    ours = shares.Shares()
    for second in range(30):
        # Only every fourth second has a sample.
        measured = {gpu: {1: 100.0}} if second % 4 == 0 else {}
        assert ours.take(measured, {("claim", gpu): [1]}, {"claim": runtime}, now=float(second)) == {}


def test_a_claim_above_its_share_is_told_of_soon_and_acted_on_only_when_that_lasts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A single kernel of forty seconds is legitimate: the library let it through, and the claim owes its time."""
    gpu = "GPU-00000000-0000-0000-0000-000000000000"
    program = subprocess.Popen(["sleep", "60"])
    process = processes.find(program.pid)
    assert process is not None
    runtime: Any = SimpleNamespace(
        occupant=lambda key: "an assignment",
        alone_percent=lambda uid: 20,
        accounted={(process, gpu_key(gpu)): Accounted(0, True)},
    )
    events: list[wire.Event] = []
    it = Auditor(Audit(pids_are_ours=True), mode=None, grace_seconds=0, tell=events.append)
    it.follow("kill")
    monkeypatch.setattr(it.audit._attribution, "claim", lambda *_: "claim")

    def seconds(first: int, last: int, percent: float) -> list[str]:
        events.clear()
        for now in range(first, last):
            listed, measured = [Listed(gpu, program.pid, 0)], {gpu: {program.pid: percent}}
            it.take(listed, set(), {"claim": runtime}, now=float(now), at=float(now), measured=measured)
        return [event.code for event in events]

    try:
        assert seconds(0, 40, 100.0) == ["core-over-limit"]
        assert (program.poll(), it.verdict().reason) == (None, None)
        # Its debt.
        assert seconds(40, 200, 0.0) == []
        it.follow("fence")
        assert seconds(200, 280, 100.0) == []
        assert it.verdict().reason == "CoreOverLimit"
        it.follow("kill")
        # The second scan may find it still ending, without a grace.
        assert seconds(280, 282, 100.0) in (["process-ended"], ["process-ended", "process-killed"])
        assert program.wait(10) in (-signal.SIGTERM, -signal.SIGKILL)
    finally:
        program.kill()
        program.wait()


@pytest.mark.parametrize(("accepts", "has_slot"), [(True, False), (False, False), (True, True)])
def test_a_claim_does_not_answer_for_a_process_of_which_only_its_own_word_says_that_it_is_the_claims(
    monkeypatch: pytest.MonkeyPatch, accepts: bool, has_slot: bool
) -> None:
    gpu, me = "GPU-00000000-0000-0000-0000-000000000000", processes.myself()
    monkeypatch.setattr(processes, "variable", lambda *_: "/claims/b")
    runtime: Any = SimpleNamespace(
        directory=Path("/claims/b"),
        accepts=lambda process: accepts,
        members=SimpleNamespace(living=list),
        occupant=lambda key: "an assignment",
        alone_percent=lambda uid: 20,
        accounted={(me, gpu_key(gpu)): Accounted(0, True)} if has_slot else {},
        damaged=False,
    )
    it = Audit(pids_are_ours=True)
    for now in range(15):
        it.run([Listed(gpu, me.pid, 0)], {"b": runtime}, now=float(now), measured={gpu: {me.pid: 100.0}})
    assert list(it._over) == ([("b", gpu)] if has_slot else [])
    # Its attribution is reported all the same, if its user may name it.
    assert [one.facts.claim_uid for one in it.findings] == ["b" if accepts else None]
