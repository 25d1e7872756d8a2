"""Faults of every kind in one agent, against a simulated driver: limits hold meanwhile, and it recovers by itself."""

import asyncio
import os
import random
import resource
import shutil
import signal
import time
from pathlib import Path

import pytest

from agent import wire
from tests.agent.chaos import (
    KILLED_AT,
    WRONG_CLOCK,
    StallingProxy,
    World,
    follows,
    limit_files,
    offset,
    settled,
)
from tests.agent.control import Connection, Control
from tests.agent.stage import GPULOAD, Stage, eventually
from tests.agent.test_drift import status

# Lines of its own code from an agent's start until it has put a dozen claims in force, roughly.
LINES = 30_000


@pytest.mark.parametrize("kills", [3, pytest.param(300, marks=[pytest.mark.long, pytest.mark.timeout(3600)])], ids=str)
async def test_an_agent_killed_before_any_line_takes_nothing_back_and_forgets_nothing(
    stage: Stage, link: Connection, control: Control, kills: int
) -> None:
    seed = random.randrange(1 << 32)  # noqa: S311
    # A failure is repeated with its seed; pytest shows the output.
    print("seed", seed)  # noqa: T201
    world = World(stage, seed)
    steady, program = await settled(stage, link, world)
    await stage.kill()
    for _ in range(kills):
        # Most of its life is short loops: small numbers hit the start, where everything is taken over.
        line = int(LINES ** world.random.uniform(0.3, 1))
        stage.start(code=KILLED_AT, arguments=(str(line),))
        agent = stage.agent
        assert agent is not None
        while agent.poll() is None:
            world.change(keep=steady.uid)
            connections = control.connections
            link = connections.get_nowait() if not connections.empty() else link
            await world.send(link)
            await asyncio.sleep(0.05)
            world.listen(link)
        assert agent.returncode == -9, stage.log_text()[-2000:]
        world.check()
        assert program.poll() is None
        while not control.connections.empty():
            control.connections.get_nowait()
        stage.start()
        link = await control.connection(seconds=60)
        await world.send(link)
        await world.wait_until_healed(link)
        await follows(stage, world.wanted[steady.uid])
        await stage.kill()


async def test_a_killed_arbiter_comes_back_and_limits_stay(stage: Stage, link: Connection) -> None:
    world = World(stage)
    steady, program = await settled(stage, link, world)
    for _ in range(3):
        before = stage.status()["arbiter"]
        assert before["running"], before
        os.kill(before["pid"], signal.SIGKILL)
        world.resize(steady.uid)
        await world.send(link)
        await world.wait_until_healed(link)
        await follows(stage, world.wanted[steady.uid])
        await eventually(
            lambda before=before: stage.status()["arbiter"]["pid"] not in (None, before["pid"])  # type: ignore[misc]
        )
    assert program.poll() is None


@pytest.mark.parametrize("seconds", [2.0, pytest.param(60.0, marks=[pytest.mark.long, pytest.mark.timeout(300)])])
async def test_a_network_that_is_cut_during_resizes_heals(stage: Stage, control: Control, seconds: float) -> None:
    proxy = StallingProxy(control.port)
    port = await proxy.start()
    try:
        stage.start(server=f"http://127.0.0.1:{port}", GPUCLOUD_BACKOFF_CAP_SECONDS="8")
        link = await control.connection(seconds=60)
        stage.gpus = [gpu.uuid for gpu in (await link.expect(wire.Hello)).gpus]
        world = World(stage)
        steady, program = await settled(stage, link, world)
        kept = world.wanted[steady.uid]
        proxy.stall()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            world.resize(steady.uid)
            await world.send(link)
            await asyncio.sleep(seconds / 20)
            # It cannot have received it.
            assert stage.slot(kept) is not None
            assert stage.slot(kept).generation == kept.generation  # type: ignore[union-attr]
            assert program.poll() is None
        proxy.heal()
        healed = time.monotonic()
        # Connected again, or still: the whole state is sent on each new connection.
        while True:
            await asyncio.sleep(0.05)
            if not control.connections.empty():
                link = control.connections.get_nowait()
                await world.send(link)
            slot = stage.slot(kept)
            if slot is not None and slot.generation == world.wanted[steady.uid].generation:
                break
            assert time.monotonic() - healed < 10
        await follows(stage, world.wanted[steady.uid])
        assert program.poll() is None
    finally:
        await proxy.close()


async def test_a_wall_clock_that_jumps_moves_no_limit_and_ends_no_program(stage: Stage, control: Control) -> None:
    clock = stage.state_dir.parent / "clock"
    offset(clock, 0)
    stage.start(code=WRONG_CLOCK, arguments=(str(clock),))
    link = await control.connection(seconds=60)
    stage.gpus = [gpu.uuid for gpu in (await link.expect(wire.Hello)).gpus]
    world = World(stage)
    steady, program = await settled(stage, link, world)
    ending = world.new()
    await world.send(link)
    await link.state(ending.uid, "in_force")
    sequence = 0
    for jump in (600.0, -600.0, 0.0):
        offset(clock, jump)
        link.forget()
        world.resize(steady.uid)
        await world.send(link)
        await world.wait_until_healed(link)
        await follows(stage, world.wanted[steady.uid])
        usage = await link.expect(wire.Usage, lambda frame, by=jump: abs(frame.at - time.time() - by) < 60)  # type: ignore[misc]
        # Numbers grow whatever the clock says: a frame that seems older must not be taken for a stored one.
        assert usage.seq > sequence
        sequence = usage.seq
        assert program.poll() is None
    del world.wanted[ending.uid]
    await world.send(link)
    await world.wait_until_healed(link)


async def test_a_full_disk_stops_no_resize_and_what_it_stops_is_told_and_done_later(
    stage: Stage, link: Connection
) -> None:
    world = World(stage)
    steady, program = await settled(stage, link, world)
    assert stage.agent is not None
    limit_files(stage.agent.pid, 0)
    world.resize(steady.uid)
    await world.send(link)
    await link.state(steady.uid, "in_force", 2)
    await follows(stage, world.wanted[steady.uid])
    new = world.new()
    await world.send(link)
    failed = await link.state(new.uid, "failed")
    assert failed.reason
    assert stage.agent.poll() is None
    assert program.poll() is None
    limit_files(stage.agent.pid, resource.RLIM_INFINITY)
    await world.send(link)
    await world.wait_until_healed(link)


async def test_an_agent_that_could_not_store_a_change_does_not_take_it_back_after_a_restart(
    stage: Stage, link: Connection, control: Control
) -> None:
    world = World(stage)
    steady, program = await settled(stage, link, world)
    assert stage.agent is not None
    limit_files(stage.agent.pid, 0)
    world.resize(steady.uid)
    await world.send(link)
    await link.state(steady.uid, "in_force", 2)
    # Nobody sends the next one its desired state.
    await control.stop()
    await stage.kill()
    stage.start()
    await eventually(lambda: status(stage))
    # Steps and drift checks after that change nothing, either.
    await asyncio.sleep(1.5)
    slot = stage.slot(steady)
    assert slot is not None
    assert (slot.is_open, slot.generation) == (True, 2)
    assert program.poll() is None
    await control.start()


async def test_two_agents_with_one_identity_do_not_throw_each_other_out_for_ever(
    stage: Stage, link: Connection, control: Control, tmp_path: Path
) -> None:
    # A superseded agent waits for eight times the cap: longer than a busy machine takes to say so.
    await stage.kill()
    stage.start(GPUCLOUD_BACKOFF_CAP_SECONDS="1.5")
    link = await control.connection()
    control.supersedes = True
    world = World(stage)
    steady, program = await settled(stage, link, world)
    first = stage.agent
    twin = tmp_path / "twin"
    shutil.copytree(stage.state_dir, twin)
    other_run_dir = stage.run_dir / "twin"
    stage.start(state_dir=twin, GPUCLOUD_RUN_DIR=str(other_run_dir))
    second = stage.agent
    stage.agent, stage.programs = first, [*stage.programs, second]  # type: ignore[list-item]
    newer = await control.connection(seconds=60)
    await asyncio.wait_for(link.closed.wait(), 60)
    # The older one waits long, and the newer one is undisturbed meanwhile.
    assert "superseded" in stage.log_text()
    before = len(control.attempts)
    await asyncio.sleep(1)
    assert len(control.attempts) == before
    assert not newer.closed.is_set()
    assert program.poll() is None
    world.check()
    assert second is not None
    second.kill()
    # The first comes back by itself.
    link = await control.connection(seconds=60)
    world.resize(steady.uid)
    await world.send(link)
    await world.wait_until_healed(link)
    await follows(stage, world.wanted[steady.uid])


async def test_a_lost_gpu_takes_its_program_along_and_nobody_elses(stage: Stage, link: Connection) -> None:
    world = World(stage)
    steady, program = await settled(stage, link, world)
    lost = world.new()
    await world.send(link)
    await link.state(lost.uid, "in_force")
    code, _, words = await stage.executed(
        lost.claim_uid, str(GPULOAD), "--memory", "1GiB", GPUCLOUD_SIM_FAULTS="cuLaunchKernel:50=!46"
    )
    assert code != 0, words
    assert program.poll() is None
    # The dead program's share is freed, and the claim can be used again and released.
    await eventually(lambda: stage.totals(lost).memory_bytes == 0)
    world.resize(steady.uid)
    await world.send(link)
    await world.wait_until_healed(link)
    del world.wanted[lost.uid]
    await world.send(link)
    await world.wait_until_healed(link)
