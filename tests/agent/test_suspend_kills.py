"""Suspensions during which a program, a helper process or the agent is killed, or the claim is released."""

import asyncio
import json
import os
import signal

import pytest

from tests.agent.control import Connection, Control
from tests.agent.stage import Stage, eventually
from tests.agent.suspensions import FAST, MIB, begin, find_helpers, goes_on, used_mib, wish
from tests.agent.test_limits import load
from tests.agent.test_reconcile import put


@pytest.fixture
async def slow(stage: Stage) -> Connection:
    """Return the connection of an agent whose driver takes a second or so for each GiB."""
    return await begin(stage, GPUCLOUD_SIM_CHECKPOINT_RATE="1000")


@pytest.fixture
async def fast(stage: Stage) -> Connection:
    return await begin(stage)


@pytest.mark.parametrize("when", ["suspending", "suspended", "resuming"])
async def test_a_release_ends_the_programs_at_every_step(stage: Stage, slow: Connection, when: str) -> None:
    held = stage.assignment()
    await put(slow, 1, held)
    program = await load(stage, held, "--memory", "2GiB")
    await eventually(lambda: used_mib(stage) > 2048)
    wanted = await wish(slow, 2, held, suspended=True, generation=2)
    if when != "suspending":
        await slow.state(held.uid, "suspended", 2)
        if when == "resuming":
            await wish(slow, 3, wanted, suspended=False, generation=3)
    await slow.state(held.uid, when)
    await wish(slow, 9, wanted, suspended=False, generation=9, present=False)
    await slow.state(held.uid, "released", 9)
    await asyncio.to_thread(program.wait, 10)
    await eventually(lambda: used_mib(stage) == 0)
    await eventually(lambda: not find_helpers(stage))
    assert json.loads((stage.run_dir / "suspensions.json").read_text()) == {}


@pytest.mark.parametrize("when", ["suspending", "suspended", "resuming"])
async def test_programs_may_be_killed_at_every_step(stage: Stage, slow: Connection, when: str) -> None:
    held = stage.assignment()
    await put(slow, 1, held)
    programs = [await load(stage, held, "--memory", "1GiB") for _ in range(2)]
    await eventually(lambda: used_mib(stage) > 2048)
    wanted = await wish(slow, 2, held, suspended=True, generation=2)
    if when != "suspending":
        await slow.state(held.uid, "suspended", 2)
        if when == "resuming":
            wanted = await wish(slow, 3, wanted, suspended=False, generation=3)
    await slow.state(held.uid, when)
    programs[0].kill()
    await asyncio.to_thread(programs[0].wait, 10)
    if when == "suspending":
        await slow.state(held.uid, "suspended", 2)
    if when != "resuming":
        assert used_mib(stage) == 0
        wanted = await wish(slow, 3, wanted, suspended=False, generation=3)
    await slow.state(held.uid, "in_force", 3)
    assert programs[1].poll() is None
    await goes_on(stage, held)
    await eventually(lambda: 1024 < used_mib(stage) < 2048)


@pytest.mark.parametrize("when", ["suspending", "resuming"])
async def test_a_helper_may_be_killed_at_every_step(stage: Stage, slow: Connection, when: str) -> None:
    held = stage.assignment()
    await put(slow, 1, held)
    programs = [await load(stage, held, "--memory", "1GiB") for _ in range(2)]
    await eventually(lambda: used_mib(stage) > 2048)
    wanted = await wish(slow, 2, held, suspended=True, generation=2)
    if when == "resuming":
        await slow.state(held.uid, "suspended", 2)
        await wish(slow, 3, wanted, suspended=False, generation=3)
    await slow.state(held.uid, when)
    await asyncio.sleep(0.7)
    for pid in await eventually(lambda: find_helpers(stage)):
        os.kill(pid, signal.SIGKILL)
    if when == "suspending":
        await slow.state(held.uid, "suspended", 2)
        assert used_mib(stage) == 0
        await wish(slow, 3, wanted, suspended=False, generation=3)
    await slow.state(held.uid, "in_force", 3)
    assert [program.poll() for program in programs] == [None, None]
    await goes_on(stage, held)


async def test_an_agent_that_is_killed_at_every_step_goes_on(stage: Stage, slow: Connection, control: Control) -> None:
    held = stage.assignment()
    await put(slow, 1, held)
    program = await load(stage, held, "--memory", "1GiB")
    await eventually(lambda: used_mib(stage) > 1024)
    before = used_mib(stage)
    wanted, link = await wish(slow, 2, held, suspended=True, generation=2), slow
    for when, then, generation in (("suspending", "suspended", 2), ("suspended", "suspended", 2)):
        await link.state(held.uid, when, generation)
        await stage.kill()
        stage.start(**FAST)
        link = await control.connection()
        await link.state(held.uid, then, generation)
        assert used_mib(stage) == 0
    await stage.kill()
    stage.start(**(FAST | {"GPUCLOUD_SIM_CHECKPOINT_RATE": "500"}))
    link = await control.connection()
    one = await link.state(held.uid, "suspended", 2)
    assert one.saved_bytes == before * MIB
    await wish(link, 3, wanted, suspended=False, generation=3)
    await link.state(held.uid, "resuming", 3)
    await stage.kill()
    stage.start(**FAST)
    link = await control.connection()
    await link.state(held.uid, "in_force", 3)
    assert used_mib(stage) == before
    assert program.poll() is None
    await goes_on(stage, held)


async def test_an_agent_whose_journal_was_lost_brings_programs_back(
    stage: Stage, fast: Connection, control: Control
) -> None:
    held = stage.assignment()
    await put(fast, 1, held)
    program = await load(stage, held, "--memory", "1GiB")
    wanted = await wish(fast, 2, held, suspended=True, generation=2)
    await fast.state(held.uid, "suspended", 2)
    await stage.kill()
    (stage.run_dir / "suspensions.json").write_text("not a journal")
    (stage.state_dir / "desired.json").unlink()
    stage.start(**FAST)
    link = await control.connection()
    await wish(link, 3, wanted, suspended=False, generation=3)
    await link.state(held.uid, "in_force", 3)
    assert program.poll() is None
    await goes_on(stage, held)
