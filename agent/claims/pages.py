"""The limits page of one claim, through libvcuda's own helper library: its header is the contract, this the other side.

The page is ours: mapped to be written, once the file is seen to be whole, since anybody of the agent's own user may cut
it; read by pread, which a cut in that moment does not end (SIGBUS).
"""

import ctypes
import os
from collections.abc import Callable
from ctypes import c_void_p
from pathlib import Path
from typing import NamedTuple, get_args
from uuid import UUID

import structlog

from agent import wire
from agent.claims.abi import MAX_GPUS, PageError, PagesLibrary, RawLimit, Uuid16

log = structlog.get_logger()

SLOT_OPEN = 1
SLOT_CLOSED = 2
# As `enum vcuda_policy` numbers them.
POLICIES: tuple[wire.Policy, ...] = get_args(wire.Policy)
FLAG_BEST_EFFORT = 1
LARGEST = 2**63 - 1
# Where the header names the kind, version and size of the page, and the claim: constant for the life of the page.
_CONSTANT = (slice(0, 16), slice(32, 48))
# Whoever cuts the page faster than that wants no limits page.
CUTS_PER_CHANGE = 10


class LimitSlot(NamedTuple):
    """What one slot of a limits page says."""

    assignment_uid: str
    # The page knows the device's bytes, not whether NVML calls it "GPU-" or "MIG-".
    gpu: UUID
    is_open: bool
    generation: int
    memory_bytes: int
    core_request: int
    core_limit: int
    sharing: wire.Sharing = wire.Sharing()


class LimitsPage:
    """The limits page of one claim; made where it is missing, adopted where it stands. Raises PageError."""

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
        """Whether the name leads to another file, or to none."""
        return inode_of(self._path) != self._inode

    def slots(self) -> list[LimitSlot]:
        """What the page says now. A slot whose writer was killed in the middle of its write is left out."""
        found, limit, said = list[LimitSlot](), RawLimit(), self._said()
        for index in range(MAX_GPUS if said else 0):
            result = self._calls.vcuda_limits_get(said, index, ctypes.byref(limit))
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
                    )
                )
        return found

    def index(self, gpu: UUID) -> int | None:
        """The slot of this GPU, by which the usage page knows it too."""
        limit, said = RawLimit(), self._said()
        for index in range(MAX_GPUS if said else 0):
            result = self._calls.vcuda_limits_get(said, index, ctypes.byref(limit))
            if result >= 0 and limit.state in (SLOT_OPEN, SLOT_CLOSED) and bytes(limit.gpu_uuid) == gpu.bytes:
                return index
        return None

    def set(self, slot: LimitSlot) -> int:
        """Put these limits in force and open the slot; the slot's index. Raises PageError."""
        limit = _raw(slot)
        return self._change("write", lambda: self._calls.vcuda_limits_set(self._page, ctypes.byref(limit)))

    def alone_percent(self, slot: LimitSlot) -> int:
        """Percent of its GPU that the assignment may use while nobody else wants it: what its policy makes of it."""
        return int(self._calls.vcuda_limit_alone(ctypes.byref(_raw(slot))))

    def close_gpu(self, gpu: UUID, generation: int) -> None:
        """From now on this GPU refuses allocations and launches of the claim. Raises PageError."""
        self._change("close", lambda: self._calls.vcuda_limits_close_gpu(self._page, gpu.bytes, generation))

    def make_whole(self) -> bool:
        """Put back what somebody cut or overwrote of the header and the size; False where that fails."""
        return self._is_whole()

    def heartbeat(self) -> None:
        """Say that the agent lives."""
        if self._is_whole():
            self._calls.vcuda_limits_heartbeat(self._page)

    def unmap(self) -> None:
        """Let go of the page; it stays as it is."""
        if self._page.value is not None:
            self._calls.vcuda_limits_unmap(self._page)
            self._page = c_void_p()
            os.close(self._file)

    def _is_whole(self) -> bool:
        """To be asked before the mapping is touched: what was cut off cannot be (SIGBUS).

        It is put back as written last, in the same file, for processes that have it mapped; of a page that was
        overwritten only the header, without which no program would start. False where that fails.
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

    def _said(self) -> bytes:
        """What the file says now, put back first where it was cut; nothing where that fails."""
        if not self._is_whole():
            return b""
        said = os.pread(self._file, self._bytes, 0)
        # Cut in this very moment: the next touch puts it back.
        return said if len(said) == self._bytes else self._written

    def _change(self, verb: str, change: Callable[[], int]) -> int:
        """What the change returns, once the whole page is known as it left it. Raises PageError."""
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
    """The number of the file of this name; 0 where there is none."""
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
        flags=FLAG_BEST_EFFORT if slot.sharing.best_effort else 0,
    )


def _sharing(limit: RawLimit) -> wire.Sharing:
    """What the page says; zeros are what an earlier agent left, which knew no policies."""
    return wire.Sharing(
        # A page that a later agent wrote may say what this one does not know.
        policy=POLICIES[limit.policy] if limit.policy < len(POLICIES) else POLICIES[0],
        weight=limit.weight or 1,
        best_effort=bool(limit.flags & FLAG_BEST_EFFORT),
        ceiling=limit.ceiling or 100,
        parts=limit.parts or 1,
    )
