"""A usage page belongs to its tenant: whatever it does with the file, the agent lives and dead slots are cleared."""

import asyncio
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent.claims import usage
from agent.claims.abi import PagesLibrary
from agent.claims.usage import Attached, UsagePage
from tests.agent.stage import BUILD, eventually

DEAD = Attached(pid=4_000_000, namespace=1, start_ticks=1)


@pytest.fixture
def library() -> PagesLibrary:
    return PagesLibrary(BUILD / "libvcuda-pages.so")


def write_row(page: UsagePage, library: PagesLibrary, row: Attached) -> None:
    """Write the first slot as a program does when it attaches: its owner word and its start time."""
    file = os.open(page.path, os.O_RDWR)
    owner = row.namespace << 32 | row.pid
    os.pwrite(file, (1).to_bytes(4, "little"), library.slots_used_at)
    os.pwrite(file, owner.to_bytes(8, "little") + row.start_ticks.to_bytes(8, "little"), library.processes_at)
    os.close(file)


def idle(page: UsagePage) -> bool:
    page.reap([])
    return not page.reaping


async def test_a_page_that_exists_is_never_mapped(run_dir: Path, library: PagesLibrary) -> None:
    UsagePage(library, run_dir).close()
    # The control: without the page, the library's call that maps it creates it.
    library.calls = SimpleNamespace(vcuda_usage_processes=library.calls.vcuda_usage_processes)
    page = UsagePage(library, run_dir)
    write_row(page, library, DEAD)
    assert page.read()
    assert page.processes() == [DEAD]
    page.reap([DEAD])
    await eventually(lambda: idle(page))
    assert page.read()
    assert page.processes() == []
    page.close()
    page.path.unlink()
    with pytest.raises(AttributeError, match="vcuda_usage_create"):
        UsagePage(library, run_dir)


async def test_sigbus_ends_the_child_and_the_dead_are_cleared_by_a_later_try(
    run_dir: Path, tmp_path: Path, library: PagesLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = UsagePage(library, run_dir)
    write_row(page, library, DEAD)
    killed = tmp_path / "killed.py"
    killed.write_text(f"import os; os.kill(os.getpid(), {int(signal.SIGBUS)})")
    monkeypatch.setattr(usage, "REAPER_RETRY_SECONDS", 0.1)
    reaper = usage._REAPER
    monkeypatch.setattr(usage, "_REAPER", killed)
    page.reap([DEAD])
    assert page.reaping
    await eventually(lambda: idle(page))
    assert page.read()
    assert page.processes() == [DEAD]
    monkeypatch.setattr(usage, "_REAPER", reaper)
    await asyncio.sleep(0.1)
    page.reap([])
    assert page.reaping
    await eventually(lambda: idle(page))
    assert page.read()
    assert page.processes() == []
    page.close()


@pytest.mark.parametrize(("at", "value"), [(0, b"\0"), (8, b"\xff"), (12, b"\xff"), (-1, b"longer")])
def test_a_page_of_another_make_or_length_is_damaged(
    run_dir: Path, library: PagesLibrary, at: int, value: bytes
) -> None:
    page = UsagePage(library, run_dir)
    assert page.read()
    with page.path.open("r+b") as file:
        file.seek(at if at >= 0 else library.usage_bytes)
        file.write(value)
    assert not page.read()
    page.close()
    again = UsagePage(library, run_dir)
    assert not again.read()
    again.close()
