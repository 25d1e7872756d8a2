"""The limits page of one claim, through libvcuda's own helper library, whose header is the contract.

The page is ours: it is mapped for writing once the file is seen to be whole, since anybody of the agent's own user may
cut it; it is read by pread, which a cut in that moment does not end (SIGBUS).
"""

import ctypes
import os
from collections.abc import Callable, Mapping
from ctypes import c_void_p
from pathlib import Path
from typing import NamedTuple, get_args
from uuid import UUID

from agent import wire
from agent.claims.abi import MAX_GPUS, PageError, PagesLibrary, RawLimit, Uuid16
from agent.logs import log

SLOT_OPEN = 1
SLOT_CLOSED = 2
# As `enum vcuda_policy` numbers them.
POLICIES: tuple[wire.Policy, ...] = get_args(wire.Policy)
FLAG_BEST_EFFORT = 1
FLAG_SUSPENDED = 2
FLAG_NO_TURNS = 4
FLAG_MPS = 8
FLAG_BORROWS = 16
FLAG_RETURNS = 32
FLAGS_OF: Mapping[wire.BackEnd, int] = {"turns": 0, "native": FLAG_NO_TURNS, "mps": FLAG_NO_TURNS | FLAG_MPS}
LARGEST = 2**63 - 1
# The header's magic, version and size of the page, and the claim: constant for the life of the page.
_CONSTANT = (slice(0, 16), slice(32, 48))
# A page that is cut more often than this during one change cannot be written.
CUTS_PER_CHANGE = 10


class LimitSlot(NamedTuple):
    """The contents of one slot of a limits page."""

    assignment_uid: str
    # The page has the device's bytes, not whether NVML calls it "GPU-" or "MIG-".
    gpu: UUID
    is_open: bool
    generation: int
    memory_bytes: int
    core_request: int
    core_limit: int
    sharing: wire.Sharing = wire.Sharing()
    # True: the claim's programs are suspended, or on the way there or back.
    suspended: bool = False
    backend: wire.BackEnd = "turns"
    # None: all of `memory_bytes` is promised, and nothing is borrowed.
    borrowing: wire.Borrowing | None = None
    # What suspended programs that come back must find free on the GPU; None: they do not come back now.
    returning_bytes: int | None = None


class LimitsPage:
    """The limits page of one claim; made if it is missing, adopted if it exists. Raises PageError."""

    def __init__(self, library: PagesLibrary, directory: Path, claim_uid: str) -> None:
        self._calls = library.calls
        self._path = directory / "limits"
        self._page = c_void_p()
        self._must("make", self._calls.vcuda_limits_create(
            os.fsencode(self._path), UUID(claim_uid).bytes, ctypes.byref(self._page)
        ))  # fmt: skip
        self._bytes = library.limits_bytes
        self._file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._inode = os.fstat(self._file).st_ino
        self._written = os.pread(self._file, self._bytes, 0)

    @property
    def is_lost(self) -> bool:
        """True if the name leads to another file, or to none."""
        return inode_of(self._path) != self._inode

    def slots(self) -> list[LimitSlot]:
        """Return the page's slots now. A slot whose writer was killed in the middle of its write is left out."""
        found, limit, page = list[LimitSlot](), RawLimit(), self._read_whole()
        for index in range(MAX_GPUS if page else 0):
            result = self._calls.vcuda_limits_get(page, index, ctypes.byref(limit))
            if result >= 0 and limit.state in (SLOT_OPEN, SLOT_CLOSED):
                found.append(
                    LimitSlot(
                        assignment_uid=str(UUID(bytes=bytes(limit.assignment_uid))),
                        gpu=UUID(bytes=bytes(limit.gpu_uuid)),
                        is_open=limit.state == SLOT_OPEN,
                        generation=limit.generation,
                        memory_bytes=limit.memory_bytes,
                        core_request=limit.core_request,
                        core_limit=limit.core_limit,
                        sharing=_sharing(limit),
                        suspended=bool(limit.flags & FLAG_SUSPENDED),
                        backend=_back_end(limit.flags),
                        borrowing=_borrowing(limit),
                        returning_bytes=limit.returning_bytes if limit.flags & FLAG_RETURNS else None,
                    )
                )
        return found

    def index(self, gpu: UUID) -> int | None:
        """Return the slot of this GPU, which is also its index in the usage page; None if it has none."""
        limit, page = RawLimit(), self._read_whole()
        for index in range(MAX_GPUS if page else 0):
            result = self._calls.vcuda_limits_get(page, index, ctypes.byref(limit))
            if result >= 0 and limit.state in (SLOT_OPEN, SLOT_CLOSED) and bytes(limit.gpu_uuid) == gpu.bytes:
                return index
        return None

    def set(self, slot: LimitSlot) -> int:
        """Put these limits in force and open the slot; return the slot's index. Raises PageError."""
        limit = _raw(slot)
        return self._change("write", lambda: self._calls.vcuda_limits_set(self._page, ctypes.byref(limit)))

    def alone_percent(self, slot: LimitSlot) -> int:
        """Return the percent of its GPU that the assignment may use, by its policy, while nobody else wants it."""
        return int(self._calls.vcuda_limit_alone(ctypes.byref(_raw(slot))))

    def close_gpu(self, gpu: UUID, generation: int) -> None:
        """Refuse the claim's allocations and launches on this GPU from now on. Raises PageError."""
        self._change("close", lambda: self._calls.vcuda_limits_close_gpu(self._page, gpu.bytes, generation))

    def move(self, source: UUID, target: UUID) -> None:
        """Exchange the GPUs of two slots, or give a slot to a GPU that has none. Raises PageError."""
        self._change("write", lambda: self._calls.vcuda_limits_move(self._page, source.bytes, target.bytes))

    def make_whole(self) -> bool:
        """Restore a cut or overwritten header and the size; return False if that fails."""
        return self._is_whole()

    def heartbeat(self) -> None:
        """Write the agent's heartbeat to the page."""
        if self._is_whole():
            self._calls.vcuda_limits_heartbeat(self._page)

    def unmap(self) -> None:
        """Unmap the page; it stays as it is."""
        if self._page.value is not None:
            self._calls.vcuda_limits_unmap(self._page)
            self._page = c_void_p()
            os.close(self._file)

    def _is_whole(self) -> bool:
        """Return whether the file is whole, after restoring it if need be.

        Call it before touching the mapping: access to a part that was cut off ends the process (SIGBUS). The page is
        restored as last written, in the same file, for processes that have it mapped; of an overwritten page only the
        header is, without which no program would start.
        """
        head = os.pread(self._file, 48, 0)
        is_long = os.fstat(self._file).st_size >= self._bytes
        if is_long and all(head[part] == self._written[part] for part in _CONSTANT):
            return True
        try:
            if is_long:
                for part in _CONSTANT:
                    os.pwrite(self._file, self._written[part], part.start)
            else:
                os.pwrite(self._file, self._written, 0)
            os.ftruncate(self._file, self._bytes)
        except OSError as error:
            log.warning("limits-page-cut", page=str(self._path), reason=str(error))
            return False
        log.warning("limits-page-cut", page=str(self._path), put_back=True)
        return True

    def _read_whole(self) -> bytes:
        """Return the file's bytes now, restored first if it was cut; empty if that fails."""
        if not self._is_whole():
            return b""
        page = os.pread(self._file, self._bytes, 0)
        # Cut in this very moment: the next access restores it.
        return page if len(page) == self._bytes else self._written

    def _change(self, verb: str, change: Callable[[], int]) -> int:
        """Apply the change and return its result, once the whole page was read back after it. Raises PageError."""
        for _ in range(CUTS_PER_CHANGE):
            if not self._is_whole():
                break
            result = self._must(verb, change())
            written = os.pread(self._file, self._bytes, 0)
            if len(written) == self._bytes:
                self._written = written
                return result
        raise PageError(f"cannot put {self._path} back, which somebody cut")

    def _must(self, verb: str, result: int) -> int:
        if result < 0:
            raise PageError(f"cannot {verb} {self._path}: {os.strerror(-result)}")
        return result


def inode_of(path: Path) -> int:
    """Return the inode of the file of this name; 0 if there is none."""
    try:
        return os.lstat(path).st_ino
    except OSError:
        return 0


def _raw(slot: LimitSlot) -> RawLimit:
    return RawLimit(
        gpu_uuid=Uuid16(*slot.gpu.bytes),
        assignment_uid=Uuid16(*UUID(slot.assignment_uid).bytes),
        generation=slot.generation,
        memory_bytes=slot.memory_bytes,
        core_request=slot.core_request,
        core_limit=slot.core_limit,
        policy=POLICIES.index(slot.sharing.policy),
        weight=slot.sharing.weight,
        ceiling=slot.sharing.ceiling,
        parts=slot.sharing.parts,
        flags=_flags(slot),
        memory_request=slot.borrowing.memory_request_bytes if slot.borrowing else 0,
        host_memory_bytes=slot.borrowing.host_memory_bytes if slot.borrowing else 0,
        returning_bytes=slot.returning_bytes or 0,
    )


def _flags(slot: LimitSlot) -> int:
    lending = FLAG_BORROWS * (slot.borrowing is not None) | FLAG_RETURNS * (slot.returning_bytes is not None)
    return (
        FLAG_BEST_EFFORT * slot.sharing.best_effort | FLAG_SUSPENDED * slot.suspended | FLAGS_OF[slot.backend] | lending
    )


def _back_end(flags: int) -> wire.BackEnd:
    if flags & FLAG_MPS:
        return "mps"
    return "native" if flags & FLAG_NO_TURNS else "turns"


def _borrowing(limit: RawLimit) -> wire.Borrowing | None:
    if not limit.flags & FLAG_BORROWS:
        return None
    return wire.Borrowing(memory_request_bytes=limit.memory_request, host_memory_bytes=limit.host_memory_bytes)


def _sharing(limit: RawLimit) -> wire.Sharing:
    """Return the slot's sharing; zeros are an earlier agent's, which knew no policies."""
    return wire.Sharing(
        # A page that a later agent wrote may name a policy that this one does not know.
        policy=POLICIES[limit.policy] if limit.policy < len(POLICIES) else POLICIES[0],
        weight=limit.weight or 1,
        best_effort=bool(limit.flags & FLAG_BEST_EFFORT),
        ceiling=limit.ceiling or 100,
        parts=limit.parts or 1,
    )
