"""Real programs under the agent's limits: attached, resized while they run, measured, reaped."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from agent import wire
from tests.agent.control import Connection, Control
from tests.agent.stage import GIB, GPULOAD, Stage, eventually
from tests.agent.test_reconcile import changed, put

MIB = 1 << 20


@pytest.fixture
async def held(stage: Stage, link: Connection) -> wire.Assignment:
    """Put a claim in force: half a GPU, 4 GiB."""
    assignment = stage.assignment()
    await put(link, 1, assignment)
    return assignment


async def load(stage: Stage, held: wire.Assignment, *options: str) -> Any:
    """Start a GPU program under the claim, attached to its pages."""
    before = stage.totals(held).processes
    program = stage.exec(held.claim_uid, str(GPULOAD), "--json", *options)
    await eventually(lambda: program.poll() is not None or stage.totals(held).processes > before)
    assert program.poll() is None, program.stderr.read()
    return program


async def usage(link: Connection, held: wire.Assignment, holds: Any) -> wire.AssignmentUsage:
    """Return the first new sample of the assignment that satisfies the condition."""

    def find(frame: wire.Usage) -> wire.AssignmentUsage | None:
        return next((one for one in frame.assignments if one.uid == held.uid and holds(one)), None)

    link.forget()
    found = find(await link.expect(wire.Usage, lambda frame: find(frame) is not None))
    assert found is not None
    return found


async def test_a_programs_share_and_memory_are_measured(stage: Stage, link: Connection, held: wire.Assignment) -> None:
    await load(stage, held, "--memory", "1GiB")
    sample = await usage(link, held, lambda one: 40 < one.core_percent < 60)
    assert sample.processes == 1
    assert GIB <= sample.memory_bytes < 2 * GIB
    assert sample.memory_limit_bytes == 4 * GIB
    assert sample.core_limit_percent == 50
    assert sample.throttled_percent > 0


async def test_a_resize_reaches_the_running_program(stage: Stage, link: Connection, held: wire.Assignment) -> None:
    program = await load(stage, held)
    await usage(link, held, lambda one: 40 < one.core_percent < 60)
    loop = asyncio.get_running_loop()
    started = loop.time()
    await link.send(wire.Desired(frame=2, assignments=[changed(held, generation=2, core_request=25, core_limit=25)]))
    await eventually(lambda: stage.totals(held).observed_generation == 2)
    assert loop.time() - started < 1
    await usage(link, held, lambda one: 20 < one.core_percent < 30)
    assert program.poll() is None


async def test_two_more_samples_follow_a_change(link: Connection, held: wire.Assignment) -> None:
    before = await usage(link, held, lambda _: True)
    link.forget()
    await asyncio.sleep(0.1)
    await link.send(wire.Desired(frame=2, assignments=[changed(held, generation=2, core_limit=80)]))
    observed = await link.expect(wire.Observed, lambda frame: frame.frame == 2)
    started = asyncio.get_running_loop().time()
    assert observed.assignments[0].generation == 2
    for _ in range(2):
        await usage(link, held, lambda one: one.core_limit_percent == 80)
    assert asyncio.get_running_loop().time() - started < 0.8
    assert before.core_limit_percent == 50


async def test_memory_over_a_lowered_limit_is_told_until_it_falls(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    program = await load(stage, held, "--memory", "2GiB", "--kernel-us", "0")
    await eventually(lambda: stage.totals(held).memory_bytes >= 2 * GIB)
    await link.send(wire.Desired(frame=2, assignments=[changed(held, generation=2, memory_bytes=GIB)]))
    over = await link.state(held.uid, "over_limit", 2)
    assert over.memory_bytes >= 2 * GIB
    assert "over the limit" in (over.reason or "")
    # No sooner than the memory is free: the server would allocate it to another claim.
    assert not [one for frame in link.frames if isinstance(frame, wire.Observed) for one in frame.assignments
                if one.generation == 2 and one.state == "in_force"]  # fmt: skip
    program.terminate()
    assert (await link.state(held.uid, "in_force", 2)).memory_bytes <= GIB


async def test_what_a_killed_program_held_is_free_within_a_second_or_two(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    program = await load(stage, held, "--memory", "1GiB", "--kernel-us", "0")
    await usage(link, held, lambda one: one.memory_bytes >= GIB)
    program.kill()
    await asyncio.to_thread(program.wait)
    await eventually(lambda: stage.totals(held) == stage.totals(held)._replace(memory_bytes=0, processes=0), seconds=3)
    await usage(link, held, lambda one: one.memory_bytes == 0 and one.processes == 0)


async def test_programs_keep_their_limits_while_the_agent_is_dead_and_are_adopted(
    stage: Stage, link: Connection, held: wire.Assignment, control: Control
) -> None:
    program = await load(stage, held, "--memory", "1GiB", "--grow", "4GiB", "--every", "0.05")
    await usage(link, held, lambda one: 40 < one.core_percent < 60)
    await stage.kill()
    # Allocations past the limit are still refused, without an agent.
    lines = [json.loads(await asyncio.to_thread(program.stdout.readline)) for _ in range(60)]
    grown = [line["error_name"] for line in lines if line.get("event") == "grow"]
    assert len(grown) > 40
    assert set(grown) == {"CUDA_ERROR_OUT_OF_MEMORY"}
    assert program.poll() is None
    stage.start()
    again = await control.connection()
    await again.state(held.uid, "in_force", 1)
    await usage(again, held, lambda one: 40 < one.core_percent < 60 and one.processes == 1)
    await put(again, 2, changed(held, generation=2, core_limit=100, core_request=100))
    await usage(again, held, lambda one: one.core_percent > 80)
    status = await asyncio.to_thread(stage.status)
    assert status["assignments"][0]["processes"] == [program.pid]


async def test_programs_keep_their_limits_while_the_server_is_away(
    stage: Stage, link: Connection, held: wire.Assignment, control: Control
) -> None:
    program = await load(stage, held)
    await control.stop()
    await asyncio.sleep(1)
    assert program.poll() is None
    # New programs can start without the server, too.
    other = await load(stage, held, "--kernel-us", "0")
    assert other.poll() is None
    await control.start()
    again = await control.connection()
    # The samples of that time were kept.
    await again.expect(wire.Usage, lambda frame: any(40 < one.core_percent < 60 for one in frame.assignments))


def damage(page: Path, with_bytes: bytes = bytes(16)) -> None:
    """Overwrite the head of a page in its place, while programs run on it."""
    with page.open("r+b") as file:
        file.write(with_bytes[:16])


async def test_a_shrink_is_not_confirmed_by_a_damaged_usage_page(
    stage: Stage, link: Connection, held: wire.Assignment, control: Control
) -> None:
    page = stage.claim_dir(held) / "usage"
    whole = page.read_bytes()
    # A damaged page is remade if no program runs on it.
    program = await load(stage, held)
    damage(page)
    # No memory must be freed: the assignment is unchanged.
    await asyncio.sleep(1.2)
    assert stage.status()["assignments"][0]["state"] == "in_force"
    smaller = changed(held, generation=2, memory_bytes=GIB)
    await link.send(wire.Desired(frame=2, assignments=[smaller]))
    told = await link.state(held.uid, "over_limit", 2)
    assert told.memory_bytes == 4 * GIB
    assert "the usage page is damaged" in (told.reason or "")
    # Nor by a new agent, which has never read the page and finds the smaller limit in force.
    await stage.kill()
    stage.start()
    again = await control.connection()
    told = await again.state(held.uid, "over_limit", 2)
    assert told.memory_bytes > GIB
    await again.send(wire.Desired(frame=3, assignments=[smaller]))
    await again.expect(wire.Observed, lambda frame: frame.frame == 3 and frame.assignments[0].state == "over_limit")
    assert program.poll() is None
    # The control: the page as it was confirms the shrink, because less was in use.
    damage(page, whole)
    assert (await again.state(held.uid, "in_force", 2)).memory_bytes < GIB
    await again.send(wire.Desired(frame=4, assignments=[changed(smaller, present=False, generation=3)]))
    await again.state(held.uid, "released", 3)
