"""The usage page of one claim, through libvcuda's own helper library.

It belongs to the tenant, who may shorten the file at any time, so it is never mapped here: it is read by pread into a
buffer, and a dead process's slot in it is cleared by a child (`reaper.py`).
"""

import ctypes
import os
import stat
import subprocess
import sys
import time
from ctypes import c_void_p
from pathlib import Path
from typing import NamedTuple

from agent.claims.abi import PageError, PagesLibrary, RawArrival, RawProcess, RawTotals
from agent.claims.pages import LARGEST, inode_of
from agent.logs import log

ACCOUNTING_KERNEL = 1
OWNER_MODE = 0o600
_NONE_LIVE = 2**64 - 1
_REAPER = Path(__file__).with_name("reaper.py")
# It takes tens of milliseconds; a tenant can hold up the opening of its own file for most of a minute.
REAPER_SECONDS = 10.0
# A page that its tenant keeps damaging must not cost a child at every refresh.
REAPER_RETRY_SECONDS = 1.0


class Totals(NamedTuple):
    """A claim's totals on one GPU, by its processes' own account: numbers from an untrusted page, made plausible."""

    # Including what contexts cost.
    memory_bytes: int = 0
    gpu_time_ns: int = 0
    throttled_ns: int = 0
    processes: int = 0
    launches: int = 0
    # The longest kernel or graph of a living process in the last ten to twenty seconds in which it had work.
    longest_kernel_us: int = 0
    # The least generation that a living process has acted on; None if none lives.
    observed_generation: int | None = None


class Moved(NamedTuple):
    """Borrowed memory of a claim on one GPU, by the same account; the last two only grow while its processes live."""

    out_bytes: int = 0
    # In both directions.
    moved_bytes: int = 0
    stood_ns: int = 0


class Accounted(NamedTuple):
    """One process's own account of its memory on one GPU."""

    # Including what its contexts cost.
    memory_bytes: int
    # True if it reads the driver's use from the kernel; else it counts what the program asks for.
    to_the_byte: bool


class Attached(NamedTuple):
    """A process that wrote itself into a usage page."""

    pid: int
    # Inode of the pid namespace in which `pid` counts.
    namespace: int
    start_ticks: int


class UsagePage:
    """The usage page of one claim; made if it is missing, adopted if it exists. Raises PageError."""

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
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                os.close(self._file)
                raise PageError(f"{self.path} is not a plain file")
        except FileNotFoundError:
            # A page that is made here belongs to no tenant yet: it may be mapped.
            page = c_void_p()
            result = library.calls.vcuda_usage_create(os.fsencode(self.path), ctypes.byref(page))
            if result < 0:
                raise PageError(f"cannot make {self.path}: {os.strerror(-result)}") from None
            library.calls.vcuda_usage_unmap(page)
            self._file = self._open()

    def read(self) -> bool:
        """Copy the page for `totals` and `processes`; return False if it is damaged.

        The next `read` of any claim replaces the copy.
        """
        library = self._library
        view = memoryview(library.buffer)
        if not self.is_whole:
            return False
        if os.preadv(self._file, [view[: library.processes_at]], 0) != library.processes_at:
            return False
        used_at = library.slots_used_at
        used = min(int.from_bytes(view[used_at : used_at + 4], "little"), library.max_processes)
        end = library.processes_at + used * library.process_bytes
        return (
            os.preadv(self._file, [view[library.processes_at : end]], library.processes_at)
            == end - library.processes_at
        )

    @property
    def is_whole(self) -> bool:
        """True if the file has the size and the header of a usage page."""
        if os.fstat(self._file).st_size != self._library.usage_bytes:
            return False
        return all(os.pread(self._file, len(value), at) == value for at, value in self._library.usage_header)

    @property
    def is_closed(self) -> bool:
        """True if the page's owner may not read and write it."""
        return os.fstat(self._file).st_mode & OWNER_MODE != OWNER_MODE

    def open_to_owner(self) -> None:
        """Let the page's owner read and write it again. Raises OSError if the agent may not."""
        os.fchmod(self._file, OWNER_MODE)

    def make_anew(self) -> None:
        """Write an empty page into the same file, which containers may have mounted. Raises OSError.

        Call it while no process has the page mapped: what they counted is gone.
        """
        content = bytearray(self._library.usage_bytes)
        os.ftruncate(self._file, 0)
        # Written, not only extended: a page of holes ends a program by SIGBUS when the tmpfs is full.
        os.pwrite(self._file, content, 0)
        # The magic last: half a page is none.
        for at, value in reversed(self._library.usage_header):
            os.pwrite(self._file, value, at)

    def arrive(self, page: bytes, namespace: int, restored: list[tuple[int, int]], clock_ns: int) -> bool:
        """Take the content of another node's page over, for processes that came with it (`vcuda_usage_arrive`)."""
        library = self._library
        if len(page) != library.usage_bytes or any(
            page[at : at + len(value)] != value for at, value in library.usage_header
        ):
            return False
        copy = ctypes.create_string_buffer(page, len(page))
        rows = (RawArrival * len(restored))(*(RawArrival(pid=pid, start_time=ticks) for pid, ticks in restored))
        library.calls.vcuda_usage_arrive(copy, namespace, rows, len(restored), clock_ns)
        return os.pwrite(self._file, copy.raw, 0) == len(page)

    def totals(self, index: int) -> Totals:
        """Return the totals of the GPU in this slot by the last `read`."""
        raw = RawTotals()
        self._library.calls.vcuda_usage_totals(self._library.buffer, index, ctypes.byref(raw))
        observed = int(raw.observed_generation)
        return Totals(
            memory_bytes=min(raw.memory_bytes + raw.context_bytes, LARGEST),
            gpu_time_ns=raw.gpu_time_ns,
            throttled_ns=raw.throttled_ns,
            processes=raw.processes,
            launches=raw.launches,
            longest_kernel_us=raw.longest_us,
            observed_generation=None if observed == _NONE_LIVE else observed,
        )

    def moved(self, index: int) -> Moved:
        """Return what moved of the memory on the GPU in this slot, by the last `read`."""
        found = self._library.lending(index)
        moved = found["moved_out_bytes"] + found["moved_in_bytes"]
        return Moved(min(found["out_bytes"], LARGEST), moved, found["stood_ns"])

    def processes(self) -> list[Attached]:
        """Return the processes in the page by the last `read`."""
        rows = (RawProcess * self._library.max_processes)()
        count = self._library.calls.vcuda_usage_processes(self._library.buffer, rows, self._library.max_processes)
        return [Attached(row.pid, row.pidns, row.start_time) for row in rows[: max(count, 0)]]

    def unmovable(self) -> dict[Attached, int]:
        """Return, by the last `read`, what the driver cannot move of each process of which there is something."""
        rows = (RawProcess * self._library.max_processes)()
        count = self._library.calls.vcuda_usage_processes(self._library.buffer, rows, self._library.max_processes)
        return {
            Attached(row.pid, row.pidns, row.start_time): row.unmovable
            for row in rows[: max(count, 0)]
            if row.unmovable
        }

    def find_unfollowed(self, index: int, order: int) -> list[Attached]:
        """Return, by the last `read`, the processes that have memory of this GPU and have not come to the order."""
        library = self._library
        view = memoryview(library.buffer)
        rows = (RawProcess * library.max_processes)()
        count = library.calls.vcuda_usage_processes(library.buffer, rows, library.max_processes)
        found = []
        for row in rows[: max(count, 0)]:
            at = library.processes_at + row.slot * library.process_bytes
            slot, done, movable = (
                int.from_bytes(view[at + field : at + field + size], "little") for field, size in library.order_fields
            )
            # Numbers begin again at 0: it is behind if it is less than half of them away.
            if slot == index and movable and (done - order) % 2**32 >= 2**31:
                found.append(Attached(row.pid, row.pidns, row.start_time))
        return found

    def memory(self, index: int) -> dict[Attached, Accounted]:
        """Return each process's own account of its memory on the GPU in this slot, by the last `read`."""
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
        """Clear the slots of these dead processes, so that their memory counts as free; a later `read` sees it.

        Call it, with an empty list too, at every refresh of the page: it continues what was asked for before.
        """
        # As many as a page has slots: a forged page must not make this grow.
        self._dead.update(dead[: max(0, self._library.max_processes - len(self._dead))])
        now = time.monotonic()
        if self._reaper is not None and not self._reaper_ended(self._reaper, now):
            return
        if self._dead and now >= self._reap_not_before:
            self._start_reaper(now)

    @property
    def reaping(self) -> bool:
        """True while slots are being cleared."""
        return self._reaper is not None

    def _open(self) -> int:
        return os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)

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
            # SIGBUS: the tenant cut its page meanwhile. What died stays counted until an attempt succeeds.
            log.warning("usage-page-damaged", page=str(self.path), code=code)
            self._reap_not_before = now + REAPER_RETRY_SECONDS
        return True

    @property
    def owner_uid(self) -> int:
        """The user whose processes may write the page."""
        return os.fstat(self._file).st_uid

    def may_write(self, uid: int) -> bool:
        """Return whether this user's processes may write the page."""
        facts = os.fstat(self._file)
        return uid in (0, facts.st_uid) or bool(facts.st_mode & stat.S_IWOTH)

    def give(self, uid: int, gid: int) -> None:
        """Make this user the owner of the page. Raises OSError if the agent may not."""
        os.fchown(self._file, uid, gid)
        os.fchmod(self._file, OWNER_MODE)

    def share(self) -> None:
        """Let every user write the page who can see it. Raises OSError if the agent may not."""
        os.fchmod(self._file, 0o666)

    @property
    def is_lost(self) -> bool:
        """True if the name leads to another file, or to none."""
        return inode_of(self.path) != self.inode

    @property
    def inode(self) -> int:
        """The file's inode, which identifies a process that maps it."""
        return os.fstat(self._file).st_ino

    def close(self) -> None:
        """Close the page; it stays as it is."""
        if self._reaper is not None:
            self._reaper.kill()
            self._reaper.wait()
            self._reaper = None
        os.close(self._file)
