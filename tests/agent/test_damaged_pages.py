"""Pages of a claim that somebody damaged: no program starts without limits, and the agent makes them whole again.

The agent is a real one, and so are the programs; a tenant's own `truncate` is what damages a page.
"""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from agent import wire
from agent.claims.abi import PageError
from tests.agent.control import Connection, Control
from tests.agent.stage import BUILD, GIB, GPULOAD, Stage, eventually
from tests.agent.test_limits import load
from tests.agent.test_reconcile import put
from tests.matrix import crossed

ENOUGH = ("--memory", "1GiB", "--kernel-us", "0", "--seconds", "0.1")
# Twice the claim's memory: more than its limit, less than the GPU has.
TOO_MUCH = ("--memory", "8GiB", "--kernel-us", "0", "--seconds", "0.1")


@pytest.fixture
async def held(stage: Stage, link: Connection) -> wire.Assignment:
    """Put a claim in force: half a GPU, 4 GiB."""
    assignment = stage.assignment()
    await put(link, 1, assignment)
    return assignment


def cut(page: Path) -> None:
    os.truncate(page, 100)


def zero_head(page: Path) -> None:
    with page.open("r+b") as file:
        file.write(bytes(256))


def spoil_magic(page: Path) -> None:
    with page.open("r+b") as file:
        file.write(b"X")


def change_version(page: Path) -> None:
    with page.open("r+b") as file:
        file.seek(8)
        file.write(b"\xff")


def close(page: Path) -> None:
    page.chmod(0)


def link_elsewhere(page: Path) -> None:
    aside = page.with_name("aside")
    page.rename(aside)
    page.symlink_to(aside)


def make_directory(page: Path) -> None:
    page.unlink()
    page.mkdir()


def make_fifo(page: Path) -> None:
    page.unlink()
    os.mkfifo(page)


PAGES = ["limits", "usage"]
RARE = [Path.unlink, spoil_magic, change_version, link_elsewhere, make_directory]
each = pytest.mark.parametrize(
    ("damage", "name"),
    [
        *crossed([cut, zero_head, close, make_fifo], PAGES),
        *(pytest.param(damage, name, marks=pytest.mark.long) for damage in RARE for name in PAGES),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)


def is_whole(stage: Stage, held: wire.Assignment) -> bool:
    """Return True if a program of any user with access to the pages finds its limits there."""
    directory = stage.claim_dir(held)
    sizes = {"limits": stage.library.limits_bytes, "usage": stage.library.usage_bytes}
    try:
        for name, size in sizes.items():
            page = directory / name
            if page.is_symlink() or not page.is_file() or page.stat().st_size != size:
                return False
            if page.stat().st_mode & 0o600 != 0o600 or page.read_bytes()[:8] not in (b"GVCLIMTS", b"GVCUSAGE"):
                return False
        slot = stage.slot(held)
    except (OSError, PageError):
        return False
    return slot is not None and slot.is_open and slot.memory_bytes == held.memory_bytes


async def start_by_variables(stage: Stage, held: wire.Assignment, *options: str) -> tuple[int, str]:
    """Start a GPU program with the claim's variables only, as a unit with its env file does."""
    program = await asyncio.create_subprocess_exec(
        str(GPULOAD),
        *options,
        env=stage.environment(
            GPUCLOUD_CLAIM_DIR=str(stage.claim_dir(held)),
            GPUCLOUD_SIM_NODE=str(stage.node_file),
            LD_LIBRARY_PATH=str(BUILD / "sim"),
            LD_PRELOAD=str(BUILD / "libvcuda.so"),
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    out, _ = await asyncio.wait_for(program.communicate(), 60)
    return program.returncode or 0, out.decode()


@each
async def test_the_next_program_of_a_claim_has_its_limits_whatever_was_done_to_a_page(
    stage: Stage, link: Connection, held: wire.Assignment, damage: Callable[[Path], None], name: str
) -> None:
    damage(stage.claim_dir(held) / name)
    code, out, error = await stage.executed(held.claim_uid, str(GPULOAD), *TOO_MUCH)
    assert (code, "hold 8192 MiB: CUDA_ERROR_OUT_OF_MEMORY" in out) == (0, True), out + error
    assert is_whole(stage, held)
    code, out, error = await stage.executed(held.claim_uid, str(GPULOAD), *ENOUGH)
    assert (code, "hold 1024 MiB: CUDA_SUCCESS" in out) == (0, True), out + error


@each
async def test_a_page_damaged_while_no_agent_ran_is_whole_after_its_start(
    stage: Stage, control: Control, held: wire.Assignment, damage: Callable[[Path], None], name: str
) -> None:
    await stage.kill()
    damage(stage.claim_dir(held) / name)
    stage.start()
    await eventually(lambda: is_whole(stage, held))
    again = await control.connection()
    await again.state(held.uid, "in_force")
    await load(stage, held, "--memory", "1GiB")


async def test_a_program_that_asks_nobody_gets_no_cuda_and_the_page_is_made_anew(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    page = stage.claim_dir(held) / "usage"
    inode = page.stat().st_ino
    await stage.kill()
    cut(page)
    code, out = await start_by_variables(stage, held, *TOO_MUCH)
    assert code != 0
    assert f"libvcuda: {page} cannot be used" in out
    stage.start()
    await eventually(lambda: is_whole(stage, held))
    # Containers have this file mounted.
    assert page.stat().st_ino == inode
    code, out = await start_by_variables(stage, held, *TOO_MUCH)
    assert (code, "CUDA_ERROR_OUT_OF_MEMORY" in out) == (0, True), out


async def test_while_programs_run_on_a_damaged_page_nobody_else_starts_and_the_event_says_so(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    program = await load(stage, held, "--memory", "1GiB", "--kernel-us", "0")
    zero_head(stage.claim_dir(held) / "usage")
    code, _, error = await stage.executed(held.claim_uid, "true")
    assert (code, "is damaged" in error) == (125, True)
    assert str(program.pid) in error
    event = await link.expect(wire.Event, lambda one: one.code == "usage-page-damaged")
    assert "New ones are refused until these have ended" in event.detail
    assert program.poll() is None
    program.kill()
    await asyncio.to_thread(program.wait)
    await eventually(lambda: is_whole(stage, held))
    repaired = await link.expect(wire.Event, lambda one: one.code == "drift-repaired")
    assert "usage page" in repaired.detail
    assert (await stage.executed(held.claim_uid, "true"))[0] == 0


async def test_where_the_policy_is_to_wait_a_damaged_page_stays_and_its_claim_is_shut(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    await link.send(wire.Desired(frame=2, assignments=[held], mend=False))
    await link.expect(wire.Observed, lambda frame: frame.frame == 2)
    cut(stage.claim_dir(held) / "usage")
    code, _, error = await stage.executed(held.claim_uid, "true")
    assert (code, "is damaged" in error) == (125, True)
    await link.send(wire.Desired(frame=3, assignments=[held], mend=True))
    await eventually(lambda: is_whole(stage, held))
    assert (await stage.executed(held.claim_uid, "true"))[0] == 0


async def test_a_zeroed_head_of_the_limits_page_is_written_again_in_place(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    program = await load(stage, held, "--memory", "1GiB", "--kernel-us", "0")
    page = stage.claim_dir(held) / "limits"
    inode = page.stat().st_ino
    zero_head(page)
    await eventually(lambda: is_whole(stage, held))
    assert page.stat().st_ino == inode
    assert program.poll() is None


async def test_a_claim_whose_page_is_damaged_can_still_be_released(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    shutil.copy(stage.claim_dir(held) / "usage", stage.claim_dir(held) / "copy")
    cut(stage.claim_dir(held) / "usage")
    await link.send(wire.Desired(frame=2, assignments=[]))
    await link.state(held.uid, "released")
    assert held.memory_bytes == 4 * GIB
