"""The pages of one claim, through libvcuda's own helper library: its header is the contract, this is the other side.

The limits page is ours: mapped to be written, once the file is seen to be whole, since anybody of the agent's own user
may cut it; read by pread, which a cut in that moment does not end (SIGBUS). The usage page belongs to the tenant, who
may shorten the file at any time, so it is never mapped here: it is read by pread into a buffer, and a dead process's
slot in it is cleared by a child (`reaper.py`).
"""

import ctypes
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from ctypes import c_void_p
from pathlib import Path
from typing import NamedTuple, get_args
from uuid import UUID

import structlog

from agent import wire
from agent.holding.abi import MAX_GPUS, PageError, PagesLibrary, RawLimit, RawProcess, RawTotals, Uuid16

log = structlog.get_logger()

SLOT_OPEN = 1
SLOT_CLOSED = 2
# As `enum vcuda_policy` numbers them.
POLICIES: tuple[wire.Policy, ...] = get_args(wire.Policy)
FLAG_BEST_EFFORT = 1
ACCOUNTING_KERNEL = 1
LARGEST = 2**63 - 1
_NONE_LIVE = 2**64 - 1
_REAPER = Path(__file__).with_name("reaper.py")
# It takes tens of milliseconds; a tenant can hold up the opening of its own file for most of a minute.
REAPER_SECONDS = 10.0
# A page that its tenant keeps damaging must not cost a child at every look.
REAPER_RETRY_SECONDS = 1.0
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


class Totals(NamedTuple):
    """What a claim's processes do on one GPU, by their own account: numbers from an untrusted page, made plausible."""

    # Including what contexts cost.
    memory_bytes: int = 0
    gpu_time_ns: int = 0
    throttled_ns: int = 0
    processes: int = 0
    # The least generation that a living process has acted on; None where none lives.
    observed_generation: int | None = None


class Accounted(NamedTuple):
    """What one process says that it holds of one GPU."""

    # Including what its contexts cost.
    memory_bytes: int
    # Whether it knows from the kernel what the driver takes; else from what the program asks for.
    to_the_byte: bool


class Attached(NamedTuple):
    """A process that stands in a usage page, by its own word."""

    pid: int
    # Inode of the pid namespace in which `pid` counts.
    namespace: int
    start_ticks: int


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

        It is put back as written last, in the same file, for processes that have it mapped. False where that fails.
        """
        if os.fstat(self._file).st_size >= self._bytes:
            return True
        try:
            os.pwrite(self._file, self._written, 0)
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


class UsagePage:
    """The usage page of one claim; made where it is missing, adopted where it stands. Raises PageError."""

    def __init__(self, library: PagesLibrary, directory: Path) -> None:
        self._library = library
        self.path = directory / "usage"
        self._dead: set[Attached] = set()
        self._reaper: subprocess.Popen[bytes] | None = None
        self._reaped: frozenset[Attached] = frozenset()
        self._reaper_since = 0.0
        self._reap_not_before = 0.0
        try:
            # A page that its tenant has damaged is taken as it is: its claim must still be ended one day.
            self._file = self._open()
        except FileNotFoundError:
            # What is made here is nobody else's yet: it may be mapped.
            page = c_void_p()
            result = library.calls.vcuda_usage_create(os.fsencode(self.path), ctypes.byref(page))
            if result < 0:
                raise PageError(f"cannot make {self.path}: {os.strerror(-result)}") from None
            library.calls.vcuda_usage_unmap(page)
            self._file = self._open()

    def read(self) -> bool:
        """Take a copy for `totals` and `processes`; the next `read` of any claim replaces it. False: damaged."""
        library = self._library
        view = memoryview(library.buffer)
        if os.fstat(self._file).st_size != library.usage_bytes:
            return False
        if os.preadv(self._file, [view[: library.processes_at]], 0) != library.processes_at:
            return False
        if any(bytes(view[at : at + len(value)]) != value for at, value in library.usage_header):
            return False
        used_at = library.slots_used_at
        used = min(int.from_bytes(view[used_at : used_at + 4], "little"), library.max_processes)
        end = library.processes_at + used * library.process_bytes
        return (
            os.preadv(self._file, [view[library.processes_at : end]], library.processes_at)
            == end - library.processes_at
        )

    def totals(self, index: int) -> Totals:
        """What the last `read` says of the GPU in this slot."""
        raw = RawTotals()
        self._library.calls.vcuda_usage_totals(self._library.buffer, index, ctypes.byref(raw))
        observed = int(raw.observed_generation)
        return Totals(
            memory_bytes=min(raw.memory_bytes + raw.context_bytes, LARGEST),
            gpu_time_ns=raw.gpu_time_ns,
            throttled_ns=raw.throttled_ns,
            processes=raw.processes,
            observed_generation=None if observed == _NONE_LIVE else observed,
        )

    def processes(self) -> list[Attached]:
        """Who stands in the page by the last `read`."""
        rows = (RawProcess * self._library.max_processes)()
        count = self._library.calls.vcuda_usage_processes(self._library.buffer, rows, self._library.max_processes)
        return [Attached(row.pid, row.pidns, row.start_time) for row in rows[: max(count, 0)]]

    def memory(self, index: int) -> dict[Attached, Accounted]:
        """What each process says by the last `read` that it holds of the GPU in this slot."""
        library = self._library
        view = memoryview(library.buffer)
        rows = (RawProcess * library.max_processes)()
        count = library.calls.vcuda_usage_processes(library.buffer, rows, library.max_processes)
        found = {}
        for row in rows[: max(count, 0)]:
            at = library.processes_at + row.slot * library.process_bytes + library.process_gpu_at
            at += index * library.gpu_usage_bytes
            total = sum(int.from_bytes(view[at + field : at + field + 8], "little") for field in library.memory_at)
            accounting_at = at + library.accounting_at
            accounting = int.from_bytes(view[accounting_at : accounting_at + 4], "little")
            attached = Attached(row.pid, row.pidns, row.start_time)
            found[attached] = Accounted(min(total, LARGEST), accounting == ACCOUNTING_KERNEL)
        return found

    def reap(self, dead: list[Attached]) -> None:
        """Have the slots of these dead processes cleared, so that their memory counts as free; a later `read` sees it.

        To be called, with an empty list too, at every look at the page: what was asked for before is gone on with.
        """
        # As many as a page has room for: a forged page must not make this grow.
        self._dead.update(dead[: max(0, self._library.max_processes - len(self._dead))])
        now = time.monotonic()
        if self._reaper is not None and not self._reaper_ended(self._reaper, now):
            return
        if self._dead and now >= self._reap_not_before:
            self._start_reaper(now)

    @property
    def reaping(self) -> bool:
        """Whether slots are being cleared just now."""
        return self._reaper is not None

    def _open(self) -> int:
        return os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)

    def _start_reaper(self, now: float) -> None:
        self._reaped = frozenset(self._dead)
        numbers = [str(n) for one in self._reaped for n in (one.namespace, one.pid, one.start_ticks)]
        # Neither site-packages nor the agent's variables: it starts faster, and they are of no use to it.
        command = [sys.executable, "-I", "-S", str(_REAPER), str(self._library.path), str(self.path), *numbers]
        try:
            self._reaper = subprocess.Popen(command, env={}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        except OSError as error:
            log.warning("reaper-not-started", page=str(self.path), reason=str(error))
            self._reap_not_before = now + REAPER_RETRY_SECONDS
        self._reaper_since = now

    def _reaper_ended(self, reaper: "subprocess.Popen[bytes]", now: float) -> bool:
        code = reaper.poll()
        if code is None:
            if now - self._reaper_since > REAPER_SECONDS:
                reaper.kill()
            return False
        self._reaper = None
        if code == 0:
            self._dead -= self._reaped
        else:
            # SIGBUS: the tenant cut its page meanwhile. What died stays counted until a try goes well.
            log.warning("usage-page-damaged", page=str(self.path), code=code)
            self._reap_not_before = now + REAPER_RETRY_SECONDS
        return True

    @property
    def owner_uid(self) -> int:
        """Whose processes may write the page."""
        return os.fstat(self._file).st_uid

    def may_write(self, uid: int) -> bool:
        """Whether this user's processes may write the page."""
        facts = os.fstat(self._file)
        return uid in (0, facts.st_uid) or bool(facts.st_mode & stat.S_IWOTH)

    def give(self, uid: int, gid: int) -> None:
        """Make the page this user's. Raises OSError where the agent may not."""
        os.fchown(self._file, uid, gid)
        os.fchmod(self._file, 0o600)

    def share(self) -> None:
        """Let every user write the page who can see it. Raises OSError where the agent may not."""
        os.fchmod(self._file, 0o666)

    @property
    def is_lost(self) -> bool:
        """Whether the name leads to another file, or to none."""
        return inode_of(self.path) != self.inode

    @property
    def inode(self) -> int:
        """The file's number, by which a process that maps it is known."""
        return os.fstat(self._file).st_ino

    def close(self) -> None:
        """Let go of the page; it stays as it is."""
        if self._reaper is not None:
            self._reaper.kill()
            self._reaper.wait()
            self._reaper = None
        os.close(self._file)
