"""Actions on the audit's findings, by the pool's policy: a report, a kill, or a condition that fences the node."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable

import pytest

from agent import wire
from agent.claims.audit import Audit, Finding
from agent.claims.auditor import MOST_ENDED, Auditor, may_end
from agent.host import processes
from tests.agent.control import Connection
from tests.agent.stage import Stage
from tests.agent.test_audit import PATIENCE, found, held, reported_codes, unlimited

__all__ = ["held"]


async def test_the_pool_says_what_becomes_of_what_is_found(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    bad = await unlimited(stage, held, "--memory", "64MiB")
    await found(link, "process-unlimited", bad.pid)
    assert reported_codes(link, bad.pid) == ["process-unlimited"]
    # It ignores SIGTERM.
    os.kill(bad.pid, signal.SIGSTOP)
    policy = wire.NodePolicy(audit="kill")
    await link.send(wire.Desired(frame=2, assignments=[held], policy=policy))
    assert "as the pool's audit_policy orders" in (await found(link, "process-ended", bad.pid)).detail
    assert "SIGKILL" in (await found(link, "process-killed", bad.pid)).detail
    assert await asyncio.to_thread(bad.wait, 5) == -9


async def test_what_is_found_is_a_condition_until_it_ends(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    async def condition(holds: Callable[[wire.Condition], bool]) -> wire.Condition:
        def those(frame: wire.Conditions) -> list[wire.Condition]:
            return [one for one in frame.conditions if one.type == "ProcessesLimited" and holds(one)]

        return those(await link.expect(wire.Conditions, lambda frame: bool(those(frame)), seconds=PATIENCE))[0]

    await condition(lambda one: one.status == "True")
    bad = await unlimited(stage, held, "--memory", "64MiB")
    first = await condition(lambda one: one.status == "False")
    assert (first.reason, first.unschedulable) == ("ProcessUnlimited", False)
    assert str(bad.pid) in first.message
    # Another process is another condition: the reason of an earlier fence may continue.
    other = await unlimited(stage, held, "--memory", "64MiB")
    second = await condition(lambda one: one.since > first.since and one.status == "False")
    assert "1 more" in second.message
    link.forget()
    for program in (bad, other):
        program.kill()
    await condition(lambda one: one.status == "True")


GPU = "GPU-00000000-0000-0000-0000-000000000000"
CLAIM = "7c9e6679-7425-40de-944b-e07fc1f90ae7"


def finding(pid: int, claim: str | None) -> Finding:
    """Return a finding of the audit."""
    facts = wire.GpuProcess(pid=pid, command="x", gpu_uuid=GPU, memory_bytes=1, claim_uid=claim)
    return Finding("process-unlimited", processes.Process(pid, 1), facts, "It is.", is_certain=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts programs as somebody else")
def test_kill_means_claims_and_peoples_processes_and_no_others() -> None:
    process = processes.myself()

    person = subprocess.Popen(["sleep", "60"], user=4321)
    system = subprocess.Popen(["sleep", "60"], user=65534)
    try:
        assert may_end(finding(person.pid, None))
        assert not may_end(finding(system.pid, None))
        assert may_end(finding(system.pid, CLAIM))
        # The first process is the system's own.
        assert not may_end(finding(1, None))
        mine = finding(process.pid, CLAIM)._replace(process=process)
        assert not may_end(mine)
    finally:
        for one in (person, system):
            one.kill()
            one.wait()


def test_who_draws_is_left_alone_and_nothing_is_done_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []

    def send(process: processes.Process, number: int) -> bool:
        sent.append(process.pid)
        return True

    monkeypatch.setattr(processes, "send", send)
    events: list[wire.Event] = []
    it = Auditor(Audit(pids_are_ours=True), mode="kill", grace_seconds=0, tell=events.append)
    monkeypatch.setattr(it.audit, "run", lambda *_, **__: [])
    it.audit.findings = [finding(4242, CLAIM), finding(4243, CLAIM)]
    it.take([], {4242}, {}, now=0.0, at=0.0)
    assert sent == [4243]
    # Actions are limited too; none is silent.
    it.audit.findings = [finding(5000 + number, CLAIM) for number in range(2 * MOST_ENDED)]
    it.take([], set(), {}, now=1.0, at=1.0)
    assert len(sent) == len(events) == MOST_ENDED
