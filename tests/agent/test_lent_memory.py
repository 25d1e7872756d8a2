"""Lent memory by the pages of one claim: closed slots, room to come back to, and who is behind an order."""

import ctypes
import os
from collections.abc import Callable, Iterator
from ctypes import c_void_p
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agent import wire
from agent.claims.abi import PagesLibrary
from agent.claims.claim import ClaimRuntime
from agent.claims.groups import Groups
from agent.claims.registry import Registry
from agent.claims.usage import Attached, UsagePage
from agent.host import processes
from agent.host.gpus import Nvml
from agent.suspend import room
from agent.suspend.records import Suspension
from tests.agent.stage import BUILD

GPU = "GPU-00000000-0000-4000-8000-000000000001"
CLAIM, HELD = "00000000-0000-4000-8000-00000000000a", "00000000-0000-4000-8000-00000000000b"
GIB = 1 << 30


@pytest.fixture
def library() -> PagesLibrary:
    return PagesLibrary(BUILD / "libvcuda-pages.so")


@pytest.fixture
def runtime(run_dir: Path, library: PagesLibrary) -> Iterator[ClaimRuntime]:
    """A claim with one suspended assignment, beside others that borrow."""
    (run_dir / "claims").mkdir()
    registry = Registry(run_dir / "processes.json")
    runtime = ClaimRuntime(
        library=library, claims=run_dir / "claims", claim_uid=CLAIM, registry=registry, groups=Groups(CLAIM, None)
    )
    held = wire.Assignment(
        uid=HELD, claim_uid=CLAIM, tenant="a", gpu_uuid=GPU, generation=1, core_request=10, core_limit=100,
        memory_bytes=4 * GIB, secret_digest="0" * 64,
    )  # fmt: skip
    runtime.put(held, suspended=True)
    runtime.make_turns()
    page = c_void_p()
    library.calls.vcuda_turns_open(os.fsencode(runtime.directory / "turns"), 1, ctypes.byref(page))
    assert page.value is not None
    at = library.memory_turns_at + library.memory_turn["fields"]["borrowers"][0]
    ctypes.c_uint32.from_address(page.value + at).value = 1
    library.calls.vcuda_turns_heartbeat(page)
    library.calls.vcuda_turns_unmap(page)
    assert runtime.lends(HELD)
    yield runtime
    runtime.abandon()


def is_open(runtime: ClaimRuntime) -> bool:
    (slot,) = runtime._limits.slots()
    return slot.is_open


def test_the_end_of_a_return_does_not_open_a_closed_slot(runtime: ClaimRuntime) -> None:
    runtime.announce_return({HELD: GIB})
    assert is_open(runtime)
    runtime.close(HELD, None)
    runtime.announce_return({})
    assert not is_open(runtime)
    assert runtime.slots_changed() == []


class Machine:
    """The free memory of one GPU at each look, and what was announced by then."""

    def __init__(self, runtime: ClaimRuntime, *free: int) -> None:
        self._runtime, self._free, self.announced = runtime, list(free), list[int | None]()
        self.before_look: Callable[[], None] = lambda: None

    def read_free(self) -> dict[str, int]:
        self.before_look()
        slot = self._runtime.slots.get(HELD)
        self.announced.append(slot.returning_bytes if slot else None)
        return {GPU: self._free.pop(0)}

    def processes(self) -> list[Any]:
        return []


async def in_thread(call: Callable[[], Any]) -> Any:
    return call()


async def find_no_room(runtime: ClaimRuntime, machine: Machine) -> str | None:
    record = Suspension("resuming", saved={HELD: GIB}, processes={processes.myself()})
    return await room.find_no_room(runtime, {HELD: GPU}, record, cast(Nvml, machine), in_thread)


async def test_room_that_a_borrower_takes_before_it_is_told_is_asked_back(
    runtime: ClaimRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "LOOK_SECONDS", 0.01)
    machine = Machine(runtime, 2 * GIB, 0, 2 * GIB)
    assert await find_no_room(runtime, machine) is None
    need = GIB + room.MARGIN_BYTES
    assert (machine.announced, runtime.slots[HELD].returning_bytes) == ([None, 0, need], 0)


async def test_an_assignment_that_is_forgotten_while_room_is_sought_is_asked_nothing(
    runtime: ClaimRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "LOOK_SECONDS", 0.01)
    machine = Machine(runtime, 2 * GIB)
    machine.before_look = lambda: runtime.forget(HELD)
    assert await find_no_room(runtime, machine) is None


def test_who_came_to_an_order_that_is_overdue_is_not_behind(run_dir: Path, library: PagesLibrary) -> None:
    page = UsagePage(library, run_dir)
    fields = SimpleNamespace(**dict(zip(("slot", "done", "movable"), library.order_fields, strict=True)))
    file = os.open(page.path, os.O_RDWR)
    os.pwrite(file, (4).to_bytes(4, "little"), library.slots_used_at)
    # By pid: the last order that it followed.
    for place, (pid, done) in enumerate({11: 2**32 - 1, 12: 2, 13: 3, 14: 1}.items()):
        at = library.processes_at + place * library.process_bytes
        os.pwrite(file, (1 << 32 | pid).to_bytes(8, "little") + (1).to_bytes(8, "little"), at)
        os.pwrite(file, done.to_bytes(4, "little"), at + fields.done[0])
        os.pwrite(file, GIB.to_bytes(8, "little"), at + fields.movable[0])
    os.close(file)
    assert page.read()
    assert page.find_unfollowed(0, 2) == [Attached(11, 1, 1), Attached(14, 1, 1)]
    assert page.find_unfollowed(1, 2) == []
    page.close()
