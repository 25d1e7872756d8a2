"""A released claim's programs end: by SIGTERM, then by SIGKILL; never a stranger's."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent import wire
from agent.claims import attribution
from agent.claims.attribution import ProcessInfo
from agent.claims.registry import Registry
from agent.host import processes
from agent.host.processes import Process
from agent.node import Node
from agent.releases import Releases
from tests.agent.control import Connection, Control
from tests.agent.stage import GIB, GPULOAD, ROOT, Stage, eventually
from tests.agent.test_limits import load
from tests.agent.test_reconcile import changed, put

# Ignores SIGTERM.
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture
async def held(stage: Stage, link: Connection) -> wire.Assignment:
    """Put a claim in force."""
    assignment = stage.assignment()
    await put(link, 1, assignment)
    return assignment


async def release(link: Connection, held: wire.Assignment) -> None:
    await link.send(wire.Desired(frame=2, assignments=[changed(held, present=False, generation=2)]))


async def test_a_gpu_program_gets_sigterm_and_the_claim_is_released(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    program = await load(stage, held, "--memory", "1GiB")
    await release(link, held)
    await link.state(held.uid, "released", 2)
    assert await asyncio.to_thread(program.wait, 10) == 0  # gpuload's exit code for SIGTERM
    assert not stage.claim_dir(held).exists()


async def test_a_program_that_ignores_sigterm_is_killed_after_the_grace(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    program = stage.exec(held.claim_uid, sys.executable, "-c", STUBBORN)
    await asyncio.to_thread(program.stdout.readline)
    started = time.monotonic()
    await release(link, held)
    told = await link.state(held.uid, "releasing")
    assert str(program.pid) in (told.reason or "")
    await link.state(held.uid, "released", 2)
    assert 0.9 < time.monotonic() - started < 4
    assert await asyncio.to_thread(program.wait, 10) == -signal.SIGKILL
    event = await link.expect(wire.Event)
    assert (event.code, str(program.pid) in event.detail) == ("process-killed", True)


async def test_a_stopped_program_cannot_hold_a_claim(stage: Stage, link: Connection, held: wire.Assignment) -> None:
    program = await load(stage, held)
    program.send_signal(signal.SIGSTOP)
    await release(link, held)
    await link.state(held.uid, "released", 2)
    assert await asyncio.to_thread(program.wait, 10) == -signal.SIGKILL


async def test_a_child_that_attached_by_itself_is_ended_too(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    # The shell is the registered process; the program is its child and known by the usage page only.
    shell = stage.exec(held.claim_uid, "sh", "-c", f"trap '' TERM; {GPULOAD} --kernel-us 0 & wait; exit 0")
    await eventually(lambda: stage.totals(held).processes == 1)
    status = await eventually(
        lambda: (told := stage.status()) and len(told["assignments"][0]["processes"]) == 2 and told
    )
    child = next(pid for pid in status["assignments"][0]["processes"] if pid != shell.pid)
    await release(link, held)
    await link.state(held.uid, "released", 2)
    assert processes.find(child) is None


async def test_a_release_goes_on_after_the_agent_was_killed(
    stage: Stage, link: Connection, held: wire.Assignment, control: Control
) -> None:
    program = stage.exec(held.claim_uid, sys.executable, "-c", STUBBORN)
    await asyncio.to_thread(program.stdout.readline)
    await release(link, held)
    await link.state(held.uid, "releasing")
    await stage.kill()
    assert program.poll() is None
    stage.start()
    again = await control.connection()
    await again.state(held.uid, "released", 2)
    assert await asyncio.to_thread(program.wait, 10) == -signal.SIGKILL


async def test_the_next_assignment_waits_for_the_last_programs(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    program = stage.exec(held.claim_uid, sys.executable, "-c", STUBBORN)
    await asyncio.to_thread(program.stdout.readline)
    await release(link, held)
    await link.state(held.uid, "releasing")
    after = stage.assignment(claim_uid=held.claim_uid)
    await link.send(wire.Desired(frame=3, assignments=[changed(held, present=False, generation=2), after]))
    observed = await link.expect(wire.Observed, lambda frame: frame.frame == 3)
    assert [(one.uid, one.state) for one in observed.assignments] == [(held.uid, "releasing")]
    await link.state(after.uid, "in_force")
    assert await asyncio.to_thread(program.wait, 10) == -signal.SIGKILL


async def test_a_gpu_in_use_within_a_living_claim_is_not_released(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    stays = stage.assignment(gpu=1, claim_uid=held.claim_uid)
    await put(link, 2, held, stays)
    program = await load(stage, held, "--memory", "1GiB", "--kernel-us", "0")
    await eventually(lambda: stage.totals(held).memory_bytes >= GIB)
    await link.send(wire.Desired(frame=3, assignments=[changed(held, present=False), stays]))
    await link.state(held.uid, "releasing")
    await asyncio.sleep(0.6)
    link.forget()
    assert program.poll() is None
    program.terminate()
    await link.state(held.uid, "released")
    assert stage.claim_dir(held).exists()


async def test_a_forged_slot_ends_no_stranger(stage: Stage, link: Connection, held: wire.Assignment) -> None:
    stranger = subprocess.Popen(["sleep", "60"])  # noqa: ASYNC220
    try:
        me = processes.find(stranger.pid)
        assert me is not None
        usage = stage.claim_dir(held) / "usage"
        with usage.open("r+b") as page:
            # One slot used; then its owner and start time.
            page.seek(stage.library.slots_used_at)
            page.write((1).to_bytes(4, "little"))
            page.seek(stage.library.processes_at)
            page.write(((processes.own_namespace() << 32) | me.pid).to_bytes(8, "little"))
            page.write(me.start_ticks.to_bytes(8, "little"))
        assert stage.totals(held).processes == 1
        await release(link, held)
        await link.state(held.uid, "released", 2)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


async def test_a_usage_page_that_was_cut_does_not_end_the_agent(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    program = await load(stage, held, "--kernel-us", "0")
    await eventually(lambda: stage.status()["assignments"][0]["processes"] == [program.pid])
    program.send_signal(signal.SIGSTOP)
    os.truncate(stage.claim_dir(held) / "usage", 100)
    await asyncio.sleep(1.2)
    await release(link, held)
    await link.state(held.uid, "released", 2)
    assert processes.find(program.pid) is None
    assert stage.agent is not None
    assert stage.agent.poll() is None


async def test_a_restarted_agent_ends_a_claim_whose_usage_page_was_damaged(
    stage: Stage, link: Connection, held: wire.Assignment, control: Control
) -> None:
    program = stage.exec(held.claim_uid, "sh", "-c", "echo up; exec sleep 600")
    await asyncio.to_thread(program.stdout.readline)
    (stage.run_dir / "processes.json").unlink()
    await stage.kill()
    (stage.claim_dir(held) / "usage").write_bytes(b"not a page")
    stage.start()
    again = await control.connection()
    await again.send(wire.Desired(frame=2, assignments=[changed(held, present=False, generation=2)]))
    await again.state(held.uid, "released", 2)
    assert await asyncio.to_thread(program.wait, 10) == -signal.SIGTERM


async def test_a_claim_whose_limits_cannot_be_read_is_never_called_released(
    stage: Stage, link: Connection, held: wire.Assignment, control: Control
) -> None:
    await stage.kill()
    limits = stage.claim_dir(held) / "limits"
    limits.unlink()
    limits.write_bytes(b"another version's page")
    # The search for drift would make the page anew before the agent is connected.
    stage.start(GPUCLOUD_DRIFT_SECONDS="60")
    again = await control.connection()
    await again.state(held.uid, "failed")
    await again.send(wire.Desired(frame=2, assignments=[changed(held, present=False, generation=2)]))
    assert "limits" in ((await again.state(held.uid, "releasing", 2)).reason or "")


async def test_a_release_that_waits_looks_through_all_processes_now_and_then_only(
    stage: Stage, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, registry, held = _hold_claim(stage, run_dir)
    stubborn = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE)  # noqa: ASYNC220
    assert stubborn.stdout is not None
    stubborn.stdout.readline()
    member = processes.find(stubborn.pid)
    assert member is not None
    registry.add(held.claim_uid, member)
    looks: list[None] = []

    def take() -> list[ProcessInfo]:
        looks.append(None)
        return []

    monkeypatch.setattr(attribution, "read_processes", take)
    clock = [10.0]
    its = Releases(node, grace_seconds=1000, clock=lambda: clock[0])
    walking = asyncio.ensure_future(its.run(lambda now, walk: its.end_processes(now=now, walk=walk)))

    async def pass_to(now: float) -> None:
        clock[0] = now
        its.end_processes(now=now)
        # A walk is a thread's.
        await asyncio.sleep(0.05)

    node.apply(wire.Desired(frame=2, assignments=[]), now=10)
    for tenth in range(11):
        await pass_to(10 + tenth / 10)
    assert len(looks) == 3
    # The control: with no process left it checks at once, and only then is the claim released.
    stubborn.kill()
    stubborn.wait()
    stubborn.stdout.close()
    await pass_to(11.05)
    assert len(looks) == 4
    assert not node.runtimes
    walking.cancel()


def _hold_claim(stage: Stage, run_dir: Path) -> tuple[Node, Registry, wire.Assignment]:
    """Return a node without an agent, its registry, and a claim in force on it."""
    stage.gpus = ["GPU-00000000-0000-4000-8000-000000000001"]
    (run_dir / "claims").mkdir()
    registry = Registry(run_dir / "processes.json")
    node = Node(library=stage.library, claims=run_dir / "claims", registry=registry, grace_seconds=1000)
    node.know_gpus(frozenset(stage.gpus), None)
    held = stage.assignment()
    node.apply(wire.Desired(frame=1, assignments=[held]), now=0)
    return node, registry, held


def test_a_reused_pid_is_another_process() -> None:
    me = processes.find(os.getpid())
    assert me is not None
    assert processes.alive(me)
    former = Process(me.pid, me.start_ticks - 1)
    assert not processes.alive(former)
    assert not processes.send(former, signal.SIGTERM)


def test_a_zombie_holds_nothing() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""], cwd=ROOT)
    assert json.dumps(processes.find(child.pid))
    while (ROOT / "/proc" / str(child.pid) / "stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z":
        time.sleep(0.01)
    assert processes.find(child.pid) is None
    child.wait()
