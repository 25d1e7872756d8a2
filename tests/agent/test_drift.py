"""Manual changes behind the agent's back: detected, reported, and repaired, at once or on an operator's order.

The agent is a real one; so are the pages, and the programs that run under them.
"""

import asyncio
import os
import shutil
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent import wire
from agent.claims.abi import PageError
from agent.claims.pages import LimitsPage
from tests.agent.control import Connection, Control
from tests.agent.stage import BUILD, GIB, GPULOAD, Stage, eventually, remove_at_once
from tests.agent.test_reconcile import changed, put


@pytest.fixture
async def held(stage: Stage, link: Connection) -> wire.Assignment:
    """Put an assignment in force."""
    assignment = stage.assignment()
    await put(link, 1, assignment)
    return assignment


@pytest.fixture
async def program(stage: Stage, held: wire.Assignment) -> AsyncIterator[Any]:
    """Start a GPU program under it, which has its slot."""
    it = stage.exec(held.claim_uid, str(GPULOAD), "--seconds", "60", LD_LIBRARY_PATH=str(BUILD / "sim"))
    await eventually(lambda: stage.totals(held).processes == 1)
    yield it
    it.kill()


def edit(stage: Stage, held: wire.Assignment, **facts: Any) -> None:
    """Write other limits than those of the agent onto the page, as root could."""
    page = LimitsPage(stage.library, stage.claim_dir(held), held.claim_uid)
    slot = stage.slot(held)
    assert slot is not None
    page.set(slot._replace(**facts))
    page.unmap()


def as_wanted(stage: Stage, held: wire.Assignment) -> bool:
    slot = stage.slot(held)
    return slot is not None and slot.is_open and (slot.memory_bytes, slot.core_limit) == (held.memory_bytes, 50)


async def told(link: Connection, code: str, words: str) -> wire.Event:
    return await link.expect(wire.Event, lambda event: event.code == code and words in event.detail, seconds=20)


async def drifts(link: Connection, *kinds: str) -> wire.Observed:
    def so(frame: wire.Observed) -> bool:
        found = frame.drifts if isinstance(frame.drifts, list) else []
        return [one.kind for one in found] == list(kinds)

    return await link.expect(wire.Observed, so, seconds=20)


async def test_an_edited_limits_page_is_written_again_and_told_of(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    edit(stage, held, memory_bytes=20 * GIB, core_limit=100)
    assert not as_wanted(stage, held)
    await told(link, "drift-found", "was edited")
    await told(link, "drift-repaired", "repaired")
    assert as_wanted(stage, held)


async def test_a_gpu_that_nobody_gave_is_closed_again(stage: Stage, link: Connection, held: wire.Assignment) -> None:
    edit(stage, held, gpu=uuid.UUID(stage.gpus[3][4:]), assignment_uid=str(uuid.uuid4()))
    await told(link, "drift-repaired", "was edited")
    page = LimitsPage(stage.library, stage.claim_dir(held), held.claim_uid)
    assert [(str(slot.gpu), slot.is_open) for slot in page.slots()] == [
        (stage.gpus[0][4:], True),
        (stage.gpus[3][4:], False),
    ]
    page.unmap()


async def test_a_running_program_stays_and_follows_after_its_page_was_taken_away(
    stage: Stage, link: Connection, held: wire.Assignment, program: Any
) -> None:
    (stage.claim_dir(held) / "limits").unlink()
    observed = await drifts(link, "files-lost")
    assert isinstance(observed.drifts, list)
    assert not observed.drifts[0].mendable
    # It maps the removed page; a change reaches it there.
    after = changed(held, generation=2)
    await put(link, 2, after)
    await eventually(lambda: stage.totals(held).observed_generation == 2)
    assert program.poll() is None
    link.forget()
    program.kill()
    await drifts(link)
    await eventually(lambda: as_wanted(stage, held))


@pytest.mark.parametrize("by", ["chmod", "replaced", "whole-directory"])
async def test_whatever_is_done_to_the_files_they_are_as_before_a_few_seconds_later(
    stage: Stage, link: Connection, held: wire.Assignment, by: str
) -> None:
    directory = stage.claim_dir(held)
    if by == "chmod":
        (directory / "limits").chmod(0o666)
        await told(link, "drift-repaired", "other permissions")
    elif by == "replaced":
        copy = directory / "mine"
        copy.write_bytes(b"\0" * 4096)
        copy.rename(directory / "limits")
    else:
        remove_at_once(directory)
    await eventually(lambda: (directory / "usage").exists() and _readable(stage, held))
    assert (directory / "limits").stat().st_mode & 0o777 == 0o644


async def test_a_directory_without_an_assignment_goes_away(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    stranger = stage.run_dir / "claims" / str(uuid.uuid4())
    shutil.copytree(stage.claim_dir(held), stranger)
    (stage.run_dir / "claims" / "notes").mkdir()
    # A copy is of another claim: it is rejected, and remade before it is removed.
    (stranger / "limits").unlink()
    await told(link, "drift-repaired", "no assignment on this node has it")
    await eventually(lambda: not stranger.exists())
    assert as_wanted(stage, held)
    assert (stage.run_dir / "claims" / "notes").exists()


async def test_a_program_under_another_library_is_told_of_and_left_alone(
    stage: Stage, link: Connection, held: wire.Assignment, tmp_path: Path
) -> None:
    other = tmp_path / "other" / "libvcuda.so"
    other.parent.mkdir()
    shutil.copy(BUILD / "libvcuda.so", other)
    program = stage.exec(
        held.claim_uid,
        "/bin/sh",
        "-c",
        # The agent sees the shell first, which runs under its own library.
        f"sleep 2; LD_PRELOAD={other} exec {GPULOAD} --seconds 60",
        LD_LIBRARY_PATH=str(BUILD / "sim"),
    )
    event = await told(link, "drift-found", str(other))
    assert str(program.pid) in event.detail
    observed = await drifts(link, "library-other")
    assert isinstance(observed.drifts, list)
    assert not observed.drifts[0].mendable
    assert program.poll() is None
    program.kill()
    await drifts(link)


async def test_where_the_policy_is_to_wait_nothing_is_touched_until_somebody_says_so(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    await link.send(wire.Desired(frame=2, assignments=[held], mend=False))
    await link.expect(wire.Observed, lambda frame: frame.frame == 2)
    edit(stage, held, memory_bytes=20 * GIB)
    observed = await drifts(link, "limits-changed")
    assert isinstance(observed.drifts, list)
    assert observed.drifts[0].mendable
    assert observed.drifts[0].claim_uid == held.claim_uid
    # Another check, and every step meanwhile, leave it so.
    await asyncio.sleep(1.5)
    assert not as_wanted(stage, held)
    link.forget()
    await link.send(wire.Desired(frame=3, assignments=[held], mend=True))
    await drifts(link)
    assert as_wanted(stage, held)


async def test_lost_files_wait_too(stage: Stage, link: Connection, held: wire.Assignment) -> None:
    await link.send(wire.Desired(frame=2, assignments=[held], mend=False))
    await link.expect(wire.Observed, lambda frame: frame.frame == 2)
    remove_at_once(stage.claim_dir(held))
    observed = await drifts(link, "files-lost")
    assert isinstance(observed.drifts, list)
    assert observed.drifts[0].mendable
    await asyncio.sleep(1.5)
    assert not stage.claim_dir(held).exists()
    link.forget()
    await link.send(wire.Desired(frame=3, assignments=[held]))
    await drifts(link)
    await eventually(lambda: as_wanted(stage, held))


@pytest.mark.parametrize("left", [0, 100])
async def test_a_limits_page_that_is_cut_is_put_back_in_place_and_the_agent_goes_on(
    stage: Stage, link: Connection, held: wire.Assignment, left: int
) -> None:
    page = stage.claim_dir(held) / "limits"
    inode, whole = page.stat().st_ino, page.stat().st_size
    for _ in range(5):
        os.truncate(page, left)
        await eventually(lambda: page.stat().st_size == whole)
    await eventually(lambda: as_wanted(stage, held))
    larger = changed(held, generation=2, memory_bytes=8 * GIB)
    os.truncate(page, left)
    await link.send(wire.Desired(frame=2, assignments=[larger]))
    await link.state(held.uid, "in_force", 2)
    assert as_wanted(stage, larger)
    assert page.stat().st_ino == inode
    assert stage.agent is not None
    assert stage.agent.poll() is None


async def test_a_limits_page_that_is_cut_while_it_is_read_or_written_is_whole_in_the_end(
    stage: Stage, held: wire.Assignment, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = stage.run_dir / "apart"
    shutil.copytree(stage.claim_dir(held), directory)
    page = LimitsPage(stage.library, directory, held.claim_uid)
    pread, cuts = os.pread, list[int]()

    def cut_first(*of: int) -> bytes:
        if cuts:
            os.truncate(directory / "limits", cuts.pop())
        return pread(*of)

    monkeypatch.setattr(os, "pread", cut_first)
    cuts.append(100)
    (slot,) = page.slots()
    cuts.append(0)
    page.set(slot._replace(generation=2, memory_bytes=8 * GIB))
    assert [(one.generation, one.memory_bytes) for one in page.slots()] == [(2, 8 * GIB)]
    cuts.append(0)
    page.close_gpu(slot.gpu, 3)
    os.truncate(directory / "limits", 0)
    assert [(one.generation, one.is_open) for one in page.slots()] == [(3, False)]
    page.unmap()


async def test_a_page_that_cannot_be_read_is_put_aside_and_made_anew(
    stage: Stage, link: Connection, control: Control, held: wire.Assignment
) -> None:
    await stage.kill()
    os.truncate(stage.claim_dir(held) / "limits", 100)
    stage.start()
    again = await control.connection()
    await told(again, "drift-repaired", "cannot be read")
    await again.state(held.uid, "in_force")
    assert as_wanted(stage, held)
    assert (stage.claim_dir(held) / "limits.damaged").exists()


async def test_an_agent_started_without_its_server_holds_limits_and_mends(
    stage: Stage, link: Connection, control: Control, held: wire.Assignment, program: Any
) -> None:
    await control.stop()
    await stage.kill()
    stage.start()
    held_now = await eventually(lambda: (stage.run_dir / "agent.sock").exists() and status(stage))
    assert [(one["claim"], one["tenant"], one["state"]) for one in held_now["assignments"]] == [
        (held.claim_uid, "vision", "in_force")
    ]
    assert held_now["connected"] is False
    edit(stage, held, core_limit=100)
    await eventually(lambda: as_wanted(stage, held), seconds=20)
    assert program.poll() is None
    await control.start()


def status(stage: Stage) -> dict[str, Any] | None:
    try:
        return stage.status()
    except Exception:  # noqa: BLE001 - it is not there yet
        return None


def _readable(stage: Stage, held: wire.Assignment) -> bool:
    try:
        return as_wanted(stage, held)
    except PageError:
        return False
