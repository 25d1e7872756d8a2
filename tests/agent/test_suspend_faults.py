"""Suspensions on a driver that fails or hangs at each step: all of a claim's programs go on, or all stay suspended."""

import asyncio
import time

import pytest

from agent import wire
from tests.agent.control import Connection, Control
from tests.agent.stage import Stage, eventually
from tests.agent.suspensions import FAST, STEADY, begin, find_helpers, goes_on, refusal, used_mib, wish
from tests.agent.test_limits import load
from tests.agent.test_reconcile import put

LONG = pytest.mark.long
HANGS = "=60000000us"
# Fails as a driver does that lacks something.
FAILS = "=801"


async def settled(stage: Stage, link: Connection, *, programs: int = 3) -> wire.Assignment:
    """Return a claim with running programs."""
    held = stage.assignment()
    await put(link, 1, held)
    for _ in range(programs):
        await load(stage, held, "--memory", "512MiB")
    await eventually(lambda: used_mib(stage) > programs * 512)
    return held


async def restarted(stage: Stage, control: Control) -> Connection:
    """Kill the agent, and start it with a driver that works again."""
    await stage.kill()
    stage.start(**FAST)
    return await control.connection()


def all_run(stage: Stage) -> bool:
    return all(program.poll() is None for program in stage.programs)


@pytest.mark.parametrize(
    ("call", "how"),
    [
        pytest.param("Lock:1", FAILS, marks=LONG), pytest.param("Lock:1", HANGS, marks=LONG), ("Lock:3", FAILS),
        pytest.param("Lock:3", HANGS, marks=LONG), pytest.param("Checkpoint:1", FAILS, marks=LONG),
        ("Checkpoint:1", HANGS), ("Checkpoint:3", FAILS), pytest.param("Checkpoint:3", HANGS, marks=LONG),
    ],
)  # fmt: skip
async def test_a_suspension_that_does_not_work_is_undone(stage: Stage, call: str, how: str) -> None:
    link = await begin(stage, GPUCLOUD_SIM_FAULTS=f"cuCheckpointProcess{call}{how}", GPUCLOUD_SUSPEND_SECONDS="1")
    held = await settled(stage, link)
    before = used_mib(stage)
    await wish(link, 2, held, suspended=True, generation=2)
    one = await refusal(link, held.uid, 2)
    assert f"cuCheckpointProcess{call[:-2]} of process" in str(one.suspend_refused)
    assert ("not returned within" if how == HANGS else "801") in str(one.suspend_refused)
    await link.state(held.uid, "in_force", 2)
    assert used_mib(stage) == before
    assert all_run(stage)
    await goes_on(stage, held)
    assert (slot := stage.slot(held)) is not None
    assert not slot.suspended
    assert not find_helpers(stage)


@pytest.mark.parametrize("call", [pytest.param("Restore:1", marks=LONG), "Restore:3"])
async def test_a_resumption_that_fails_leaves_all_suspended(stage: Stage, control: Control, call: str) -> None:
    link = await begin(stage, GPUCLOUD_SIM_FAULTS=f"cuCheckpointProcess{call}=2")
    held = await settled(stage, link)
    wanted = await wish(link, 2, held, suspended=True, generation=2)
    await link.state(held.uid, "suspended", 2)
    wanted = await wish(link, 3, wanted, suspended=False, generation=3)
    one = await refusal(link, held.uid, 3)
    assert (one.state, used_mib(stage)) == ("suspended", 0)
    # No endless tries: the server's next word is waited for.
    await asyncio.sleep(1.5)
    assert not find_helpers(stage)
    link = await restarted(stage, control)
    await wish(link, 4, wanted, suspended=False, generation=4)
    await link.state(held.uid, "in_force", 4)
    assert all_run(stage)
    await goes_on(stage, held)


@pytest.mark.parametrize(
    "call", ["Restore:1", pytest.param("Unlock:1", marks=LONG), pytest.param("GetState:1", marks=LONG)]
)
async def test_a_resumption_that_hangs_holds_up_nothing_else(stage: Stage, control: Control, call: str) -> None:
    link = await begin(stage)
    held = await settled(stage, link)
    wanted = await wish(link, 2, held, suspended=True, generation=2)
    await link.state(held.uid, "suspended", 2)
    await stage.kill()
    # Stands still at the next word of the server, not at the agent's own look at the processes.
    at = call if not call.startswith("GetState") else "GetState:1+"
    stage.start(**FAST, GPUCLOUD_SIM_FAULTS=f"cuCheckpointProcess{at}{HANGS}", GPUCLOUD_SUSPEND_SECONDS="1")
    link = await control.connection()
    wanted = await wish(link, 3, wanted, suspended=False, generation=3)
    one = await refusal(link, held.uid, 3)
    assert "not returned within" in str(one.suspend_refused)
    begun = time.monotonic()
    other = stage.assignment(gpu=1)
    await link.send(wire.Desired(frame=4, assignments=[wanted, other]))
    await link.state(other.uid, "in_force", 1)
    assert time.monotonic() - begun < 2
    assert all_run(stage)
    link = await restarted(stage, control)
    await link.state(held.uid, "in_force", 3)
    assert all_run(stage)
    await goes_on(stage, held)


async def test_a_program_that_a_restore_broke_is_reported(stage: Stage) -> None:
    link = await begin(stage, GPUCLOUD_SIM_CHECKPOINT_BREAKS="1")
    held = stage.assignment()
    await put(link, 1, held)
    program = stage.exec(held.claim_uid, *STEADY)
    await eventually(lambda: stage.totals(held).memory_bytes > 64 << 20)
    await goes_on(stage, held)
    wanted = await wish(link, 2, held, suspended=True, generation=2)
    await link.state(held.uid, "suspended", 2)
    await wish(link, 3, wanted, suspended=False, generation=3)
    event = await link.expect(wire.Event, lambda event: event.code == "suspend-failed")
    assert str(program.pid) in event.detail
    await link.state(held.uid, "in_force", 3)
    # The driver answers it errors from now on.
    program.terminate()
    out, _ = await asyncio.to_thread(program.communicate, timeout=10)
    assert b"error 999" in out
