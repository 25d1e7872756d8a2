"""MIG instances that several claims of a tenant share: limits and turns inside, one end for all, killed agents."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from agent import wire
from tests.agent import forked
from tests.agent.control import Connection, Control
from tests.agent.stage import GIB, GPULOAD, Stage, eventually
from tests.agent.test_instances import H200, KILLED_AT, connect, instances_of
from tests.agent.test_limits import load
from tests.agent.test_reconcile import changed, put

PLACE = wire.MigPlace(profile="3g.71gb", start=4, size=4)


@pytest.fixture
async def divided(tmp_path: Path, run_dir: Path, control: Control) -> AsyncIterator[Stage]:
    """Return a node of two GPUs, the first of them in MIG mode, whose agent is not started yet."""
    it = Stage(tmp_path, run_dir, control, gpus=2, agents=forked.server(), shape=H200)
    yield it
    it.close()


@pytest.fixture
async def link(divided: Stage) -> Connection:
    """Return the connection of the node's agent."""
    divided.start()
    return await connect(divided)


def pair(stage: Stage, **of_second: Any) -> tuple[wire.Assignment, wire.Assignment]:
    """Return the assignment of a claim that opens its instance, with 12 of 42 %, and of one with 21 % in there."""
    first = stage.assignment(mig=PLACE, core_request=12, core_limit=42, memory_bytes=16 * GIB)
    shared = wire.SharedInstance(holder=first.uid, core_percent=42)
    inside = {"core_request": 21, "core_limit": 21, "memory_bytes": 10 * GIB, **of_second}
    return structs.replace(first, shared=shared), stage.assignment(mig=PLACE, shared=shared, **inside)


async def test_each_has_its_part_of_one_device(divided: Stage, link: Connection) -> None:
    first, second = pair(divided)
    await put(link, 1, first, second)
    (device,) = instances_of(divided).values()
    slots = [divided.slot(one) for one in (first, second)]
    # Percent of the device: 12 and 21 of its 42 % of the GPU.
    found = [(f"MIG-{one.gpu}", one.core_request, one.core_limit, one.memory_bytes >> 30) for one in slots if one]
    assert found == [(device, 28, 100, 16), (device, 50, 50, 10)]
    for one, fits in ((first, "12GiB"), (second, "8GiB")):
        code, out, _ = await divided.executed(one.claim_uid, "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
        assert (code, out.strip()) == (0, device)
        _, out, _ = await divided.executed(one.claim_uid, str(GPULOAD), "--memory", fits, "--seconds", "0.2")
        assert "OUT_OF_MEMORY" not in out
    _, out, _ = await divided.executed(second.claim_uid, str(GPULOAD), "--memory", "12GiB", "--seconds", "0.2")
    assert "OUT_OF_MEMORY" in out


async def test_a_limit_holds_alone_and_the_rest_of_the_instance_is_for_whoever_wants_it(
    divided: Stage, link: Connection
) -> None:
    first, second = pair(divided)
    await put(link, 1, first, second)
    await load(divided, second)
    alone = await link.expect(wire.Usage, lambda frame: _core(frame, second) > 10)
    # 21 % of the GPU is its limit, though the instance has 42.
    assert _core(alone, second) < 25
    await load(divided, first)
    both = await link.expect(wire.Usage, lambda frame: _core(frame, first) > 15 and _core(frame, second) > 10)
    assert _core(both, first) + _core(both, second) <= 44
    assert both.gpus[0].core_percent == pytest.approx(_core(both, first) + _core(both, second), abs=0.1)


def _core(frame: wire.Usage, wanted: wire.Assignment) -> float:
    return next((one.core_percent for one in frame.assignments if one.uid == wanted.uid), 0.0)


async def test_limits_change_live_within_the_instance(divided: Stage, link: Connection) -> None:
    first, second = pair(divided)
    await put(link, 1, first, second)
    program = await load(divided, second, "--memory", "1GiB")
    more = changed(second, generation=2, core_request=30, core_limit=42, memory_bytes=20 * GIB)
    await link.send(wire.Desired(frame=2, assignments=[first, more]))
    await link.state(second.uid, "in_force", 2)
    slot = divided.slot(second)
    assert slot is not None
    assert (slot.core_request, slot.core_limit, slot.memory_bytes >> 30) == (71, 100, 20)
    assert program.poll() is None


async def test_the_own_part_changes_live_and_a_killed_agent_goes_on_with_it(divided: Stage, link: Connection) -> None:
    first, second = pair(divided)
    await put(link, 1, first, second)
    before = instances_of(divided)
    program = await load(divided, first, "--memory", "1GiB")
    other = changed(first, generation=2, core_request=21, memory_bytes=20 * GIB)
    await link.send(wire.Desired(frame=2, assignments=[other, second]))
    await link.state(first.uid, "in_force", 2)
    await divided.kill()
    divided.start()
    again = await connect(divided)
    slot = divided.slot(first)
    assert slot is not None
    # 21 of the 42 percent of the GPU that the device is.
    assert (slot.core_request, slot.core_limit, slot.memory_bytes >> 30) == (50, 100, 20)
    less = changed(other, generation=3, core_request=0, memory_bytes=2 * GIB)
    await again.send(wire.Desired(frame=3, assignments=[less, second]))
    await again.state(first.uid, "in_force", 3)
    slot = divided.slot(first)
    assert slot is not None
    assert (slot.core_request, slot.core_limit, slot.memory_bytes >> 30) == (0, 100, 2)
    assert (program.poll(), instances_of(divided)) == (None, before)


async def test_the_instance_is_removed_with_the_last_claim_in_it(divided: Stage, link: Connection) -> None:
    first, second = pair(divided)
    await put(link, 1, first, second)
    program = await load(divided, second, "--memory", "1GiB")
    gone = changed(first, generation=2, present=False)
    await link.send(wire.Desired(frame=2, assignments=[gone, second]))
    await link.state(first.uid, "releasing", 2)
    await asyncio.sleep(1)
    assert list(instances_of(divided)) == ["4:4"]
    assert program.poll() is None
    await link.send(wire.Desired(frame=3, assignments=[gone, changed(second, generation=2, present=False)]))
    for one in (second, first):
        await link.state(one.uid, "released", 2)
    assert instances_of(divided) == {}
    assert json.loads((divided.run_dir / "instances.json").read_text()) == []


async def test_one_leaves_and_the_other_goes_on(divided: Stage, link: Connection) -> None:
    first, second = pair(divided)
    await put(link, 1, first, second)
    program = await load(divided, first, "--memory", "1GiB")
    await link.send(wire.Desired(frame=2, assignments=[first, changed(second, generation=2, present=False)]))
    await link.state(second.uid, "released", 2)
    assert (list(instances_of(divided)), program.poll()) == (["4:4"], None)


async def test_a_killed_agent_leaves_the_programs_of_all_and_their_instance(divided: Stage, link: Connection) -> None:
    first, second = pair(divided)
    await put(link, 1, first, second)
    before = instances_of(divided)
    programs = [await load(divided, one, "--memory", "1GiB") for one in (first, second)]
    await divided.kill()
    divided.start()
    again = await connect(divided)
    # The claim of the instance is no longer wanted; the pages of the other one say that it is still needed.
    await again.send(wire.Desired(frame=2, assignments=[changed(first, generation=2, present=False), second]))
    await again.state(first.uid, "releasing", 2)
    assert instances_of(divided) == before
    assert programs[1].poll() is None
    await eventually(lambda: programs[0].poll() is not None)


@pytest.mark.parametrize("step", ["nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy", "drop"])
async def test_an_agent_killed_at_the_end_of_a_shared_instance_leaves_nothing_after_the_next(
    divided: Stage, step: str
) -> None:
    divided.start(code=KILLED_AT, arguments=(step, "before"))
    link = await connect(divided)
    first, second = pair(divided)
    await put(link, 1, first, second)
    gone = [changed(one, generation=2, present=False) for one in (first, second)]
    await link.send(wire.Desired(frame=2, assignments=gone))
    assert await divided.ended() == -9
    divided.start()
    link = await connect(divided)
    await link.send(wire.Desired(frame=2, assignments=gone))
    for one in (first, second):
        await link.state(one.uid, "released", 2)
    assert instances_of(divided) == {}


async def test_a_claim_whose_instance_is_not_there_yet_waits_for_it(divided: Stage, link: Connection) -> None:
    first, second = pair(divided)
    await link.send(wire.Desired(frame=1, assignments=[second]))
    await asyncio.sleep(1)
    assert divided.slot(second) is None
    assert instances_of(divided) == {}
    await put(link, 2, first, second)
