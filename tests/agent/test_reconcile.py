"""From desired to in force: pages, states, frames, and an agent that may be killed at any moment."""

import asyncio
import uuid

import pytest

from agent import wire
from agent.claims.pages import LimitSlot
from tests.agent.control import Connection, Control
from tests.agent.stage import GIB, Stage, eventually


async def put(link: Connection, frame: int, *assignments: wire.Assignment) -> None:
    """Send the whole desired state and wait until all of it is in force."""
    await link.send(wire.Desired(frame=frame, assignments=list(assignments)))
    for one in assignments:
        if one.present:
            await link.state(one.uid, "in_force", one.generation)


def changed(assignment: wire.Assignment, **facts: object) -> wire.Assignment:
    return wire.Assignment(**{**{name: getattr(assignment, name) for name in assignment.__struct_fields__}, **facts})


async def test_an_assignment_in_force_stands_on_its_page(stage: Stage, link: Connection) -> None:
    held = stage.assignment(gpu=2, core_request=25, core_limit=75)
    await put(link, 7, held)
    assert stage.slot(held) == LimitSlot(
        assignment_uid=held.uid,
        gpu=uuid.UUID(held.gpu_uuid[4:]),
        is_open=True,
        generation=1,
        memory_bytes=4 * GIB,
        core_request=25,
        core_limit=75,
    )
    assert (stage.claim_dir(held) / "limits").stat().st_mode & 0o777 == 0o644
    assert (stage.claim_dir(held) / "usage").stat().st_mode & 0o777 == 0o600
    observed = await link.expect(wire.Observed, lambda frame: frame.frame == 7)
    assert observed.assignments == [wire.Observation(uid=held.uid, generation=1, state="in_force")]


async def test_an_assignment_that_borrows_says_so_on_its_page(stage: Stage, link: Connection) -> None:
    held = stage.assignment(gpu=1)
    borrowing = wire.Borrowing(memory_request_bytes=GIB, host_memory_bytes=3 * GIB)
    await put(link, 1, changed(held, borrowing=borrowing))
    slot = stage.slot(held)
    assert slot is not None
    assert (slot.borrowing, slot.memory_bytes) == (borrowing, 4 * GIB)
    await put(link, 2, changed(held, generation=2))
    slot = stage.slot(held)
    assert slot is not None
    assert slot.borrowing is None


async def test_one_claim_on_two_gpus_has_one_directory_with_two_slots(stage: Stage, link: Connection) -> None:
    first = stage.assignment(gpu=0)
    second = stage.assignment(gpu=3, claim_uid=first.claim_uid)
    await put(link, 1, first, second)
    assert stage.slot(first) is not None
    assert stage.slot(second) is not None
    assert len(list((stage.run_dir / "claims").iterdir())) == 1


async def test_a_change_is_written_into_the_same_page(stage: Stage, link: Connection) -> None:
    held = stage.assignment()
    await put(link, 1, held)
    inode = (stage.claim_dir(held) / "limits").stat().st_ino
    await put(link, 2, changed(held, generation=2, core_limit=90, memory_bytes=GIB))
    slot = stage.slot(held)
    assert slot is not None
    assert (slot.generation, slot.core_limit, slot.memory_bytes) == (2, 90, GIB)
    assert (stage.claim_dir(held) / "limits").stat().st_ino == inode


async def test_a_stale_frame_is_ignored_and_answered_with_what_is_in_force(stage: Stage, link: Connection) -> None:
    held = stage.assignment()
    await put(link, 5, held)
    for frame in (5, 4):
        link.forget()
        await link.send(wire.Desired(frame=frame, assignments=[]))
        # The server does not know what is in force: the agent reports it again.
        assert (await link.expect(wire.Observed)).frame == 5
    slot = stage.slot(held)
    assert slot is not None
    assert slot.is_open


async def test_the_first_desired_after_a_welcome_counts_whatever_its_number(
    stage: Stage, link: Connection, control: Control
) -> None:
    held = stage.assignment()
    await put(link, 500, held)
    await link.socket.close(1012)
    again = await control.connection()
    await put(again, 3, changed(held, generation=2, core_limit=60))
    observed = await again.expect(wire.Observed, lambda frame: frame.frame == 3)
    assert observed.assignments[0].generation == 2


async def test_a_gpu_of_another_node_fails_in_words(stage: Stage, link: Connection) -> None:
    lost = stage.assignment(gpu_uuid="GPU-00000000-0000-4000-8000-000000000000")
    held = stage.assignment()
    await link.send(wire.Desired(frame=1, assignments=[lost, held]))
    observation = await link.state(lost.uid, "failed")
    assert "is not on this node" in (observation.reason or "")
    await link.state(held.uid, "in_force")
    assert not stage.claim_dir(lost).exists()


async def test_limits_that_make_no_sense_fail_and_leave_the_last_ones(stage: Stage, link: Connection) -> None:
    held = stage.assignment()
    await put(link, 1, held)
    await link.send(wire.Desired(frame=2, assignments=[changed(held, generation=2, core_request=80, core_limit=20)]))
    await link.state(held.uid, "failed", 2)
    slot = stage.slot(held)
    assert slot is not None
    assert (slot.generation, slot.core_request, slot.core_limit) == (1, 50, 50)


@pytest.mark.parametrize("listed", [True, False])
async def test_a_claim_without_programs_is_released_at_once(stage: Stage, link: Connection, listed: bool) -> None:
    held = stage.assignment()
    await put(link, 1, held)
    gone = [changed(held, present=False, generation=2)] if listed else []
    await link.send(wire.Desired(frame=2, assignments=gone))
    await link.state(held.uid, "released")
    assert not stage.claim_dir(held).exists()


async def test_released_is_told_for_as_long_as_the_server_lists_it(
    stage: Stage, link: Connection, control: Control
) -> None:
    held = stage.assignment()
    await put(link, 1, held)
    gone = changed(held, present=False, generation=2)
    await link.send(wire.Desired(frame=2, assignments=[gone]))
    await link.state(held.uid, "released", 2)
    await stage.kill()
    stage.start()
    again = await control.connection()
    await again.state(held.uid, "released", 2)
    await again.send(wire.Desired(frame=3, assignments=[]))
    await again.expect(wire.Observed, lambda frame: frame.frame == 3 and frame.assignments == [])


async def test_a_claim_never_seen_here_is_released_when_asked(stage: Stage, link: Connection) -> None:
    gone = stage.assignment(present=False)
    await link.send(wire.Desired(frame=1, assignments=[gone]))
    await link.state(gone.uid, "released")


async def test_a_gpu_freed_within_a_claim_is_taken_by_its_next_assignment(stage: Stage, link: Connection) -> None:
    first = stage.assignment(gpu=0)
    stays = stage.assignment(gpu=1, claim_uid=first.claim_uid)
    await put(link, 1, first, stays)
    after = stage.assignment(gpu=0, claim_uid=first.claim_uid)
    await link.send(wire.Desired(frame=2, assignments=[changed(first, present=False), stays, after]))
    await link.state(first.uid, "released")
    await link.state(after.uid, "in_force")


async def test_a_killed_agent_adopts_what_is_in_force(stage: Stage, link: Connection, control: Control) -> None:
    held = stage.assignment()
    await put(link, 1, held)
    inodes = [(stage.claim_dir(held) / name).stat().st_ino for name in ("limits", "usage")]
    await stage.kill()
    stage.start()
    again = await control.connection()
    observed = await again.expect(wire.Observed)
    assert observed == wire.Observed(
        frame=1, assignments=[wire.Observation(uid=held.uid, generation=1, state="in_force")]
    )
    assert [(stage.claim_dir(held) / name).stat().st_ino for name in ("limits", "usage")] == inodes


async def test_a_restart_without_the_server_brings_back_what_was_wanted(
    stage: Stage, link: Connection, control: Control
) -> None:
    held = stage.assignment()
    await put(link, 1, held)
    await stage.kill()
    await control.stop()
    # As after a reboot: the run directory was on a tmpfs.
    for path in sorted(stage.claim_dir(held).iterdir()):
        path.unlink()
    stage.claim_dir(held).rmdir()
    stage.start()
    slot = await eventually(lambda: stage.slot(held))
    assert slot.is_open
    await control.start()


@pytest.mark.parametrize("damage", ["missing", "half"])
async def test_without_its_state_file_the_agent_takes_nothing_away(
    stage: Stage, link: Connection, control: Control, damage: str
) -> None:
    held = stage.assignment()
    await put(link, 1, held)
    await stage.kill()
    stored = stage.state_dir / "desired.json"
    if damage == "half":
        stored.write_bytes(stored.read_bytes()[:50])
    else:
        stored.unlink()
    stage.start()
    again = await control.connection()
    await again.state(held.uid, "in_force")
    await asyncio.sleep(1.2)
    slot = stage.slot(held)
    assert slot is not None
    assert slot.is_open
    # Only the server's message releases it.
    await again.send(wire.Desired(frame=1, assignments=[]))
    await again.state(held.uid, "released")


async def test_an_agent_killed_anywhere_in_a_burst_of_changes_ends_where_it_should(
    stage: Stage, link: Connection, control: Control
) -> None:
    held = [stage.assignment(gpu=gpu) for gpu in range(4)]
    frame = 0
    for kill_after in (0.0, 0.003, 0.01):
        for _ in range(20):
            frame += 1
            wanted = [changed(one, generation=frame, core_limit=50 + frame % 50) for one in held]
            await link.send(wire.Desired(frame=frame, assignments=wanted))
        await asyncio.sleep(kill_after)
        await stage.kill()
        stage.start()
        link = await control.connection()
        frame += 1
        await put(link, frame, *[changed(one, generation=frame, core_limit=99) for one in held])
        for one in held:
            slot = stage.slot(one)
            assert slot is not None
            assert (slot.is_open, slot.generation, slot.core_limit) == (True, frame, 99)
