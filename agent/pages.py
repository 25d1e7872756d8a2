"""The pages of one claim, through libvcuda's own helper library: its header is the contract, this is the other side.

The limits page is ours and mapped. The usage page belongs to the tenant, who may shorten the file at any time: a read
of a mapping would then end the agent (SIGBUS), so it is read by pread into a buffer, and mapped only for the moment in
which a dead process's slot is cleared.
"""

import ctypes
import errno
import json
import os
from ctypes import POINTER, c_char_p, c_int, c_uint8, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

ABI_VERSION = 1
MAX_GPUS = 16
SLOT_OPEN = 1
SLOT_CLOSED = 2
LARGEST = 2**63 - 1
_NONE_LIVE = 2**64 - 1


class PageError(Exception):
    """A page cannot be made, opened or written; the message says which and why."""


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


class Totals(NamedTuple):
    """What a claim's processes do on one GPU, by their own account: numbers from an untrusted page, made plausible."""

    # Including what contexts cost.
    memory_bytes: int = 0
    gpu_time_ns: int = 0
    throttled_ns: int = 0
    processes: int = 0
    # The least generation that a living process has acted on; None where none lives.
    observed_generation: int | None = None


class Attached(NamedTuple):
    """A process that stands in a usage page, by its own word."""

    pid: int
    # Inode of the pid namespace in which `pid` counts.
    namespace: int
    start_ticks: int


class _Limit(ctypes.Structure):
    _fields_ = [
        ("index", c_uint32),
        ("state", c_uint32),
        ("gpu_uuid", c_uint8 * 16),
        ("assignment_uid", c_uint8 * 16),
        ("generation", c_uint64),
        ("memory_bytes", c_uint64),
        ("core_request", c_uint32),
        ("core_limit", c_uint32),
    ]


class _Totals(ctypes.Structure):
    _fields_ = [
        ("memory_bytes", c_uint64),
        ("context_bytes", c_uint64),
        ("gpu_time_ns", c_uint64),
        ("throttled_ns", c_uint64),
        ("launches", c_uint64),
        ("refused", c_uint64),
        ("observed_generation", c_uint64),
        ("processes", c_uint32),
        ("reserved", c_uint32),
    ]


class _ProcessInfo(ctypes.Structure):
    _fields_ = [
        ("slot", c_uint32),
        ("pid", c_uint32),
        ("pidns", c_uint64),
        ("start_time", c_uint64),
        ("observed_gen", c_uint32),
        ("reserved", c_uint32),
    ]


_MIRRORS: dict[str, type[ctypes.Structure]] = {
    "vcuda_limit": _Limit,
    "vcuda_totals": _Totals,
    "vcuda_process_info": _ProcessInfo,
}
_SIGNATURES: dict[str, list[Any]] = {
    "vcuda_limits_create": [c_char_p, c_char_p, POINTER(c_void_p)],
    "vcuda_limits_open": [c_char_p, c_int, POINTER(c_void_p)],
    "vcuda_limits_unmap": [c_void_p],
    "vcuda_limits_set": [c_void_p, c_char_p, c_char_p, c_uint64, c_uint64, c_uint32, c_uint32],
    "vcuda_limits_close_gpu": [c_void_p, c_char_p, c_uint64],
    "vcuda_limits_heartbeat": [c_void_p],
    "vcuda_limits_get": [c_void_p, c_uint32, POINTER(_Limit)],
    "vcuda_usage_create": [c_char_p, POINTER(c_void_p)],
    "vcuda_usage_open": [c_char_p, c_int, POINTER(c_void_p)],
    "vcuda_usage_unmap": [c_void_p],
    "vcuda_usage_totals": [c_void_p, c_uint32, POINTER(_Totals)],
    "vcuda_usage_processes": [c_void_p, POINTER(_ProcessInfo), c_uint32],
    "vcuda_usage_reap": [c_void_p, c_uint64, c_uint32, c_uint64],
    "vcuda_usage_reap_dead": [c_void_p],
}
_WITHOUT_RESULT = frozenset({"vcuda_limits_unmap", "vcuda_limits_heartbeat", "vcuda_usage_unmap"})


class PagesLibrary:
    """libvcuda-pages.so, checked against this file's mirror when it is loaded. Raises PageError."""

    def __init__(self, path: Path) -> None:
        try:
            self.calls: Any = ctypes.CDLL(str(path))
        except OSError as error:
            raise PageError(
                f"libvcuda's pages library cannot be loaded: {error}. Build it with `make -C libvcuda`."
            ) from error
        self.calls.vcuda_abi_describe.restype = c_char_p
        abi = json.loads(self.calls.vcuda_abi_describe())
        self._check(abi, path)
        for name, arguments in _SIGNATURES.items():
            call = getattr(self.calls, name)
            call.argtypes = arguments
            call.restype = None if name in _WITHOUT_RESULT else c_int
        usage = abi["structs"]["vcuda_usage"]["fields"]
        self.usage_bytes: int = abi["usage_size"]
        self.max_processes: int = abi["max_processes"]
        self.slots_used_at: int = usage["slots_used"][0]
        self.processes_at: int = usage["process"][0]
        self.process_bytes: int = abi["structs"]["vcuda_process"]["size"]
        # One for all claims: what is read of a usage page is taken out at once.
        self.buffer = ctypes.create_string_buffer(self.usage_bytes)

    def _check(self, abi: Any, path: Path) -> None:
        same = abi["version"] == ABI_VERSION and abi["max_gpus"] == MAX_GPUS
        for name, mirror in _MIRRORS.items():
            told = abi["structs"][name]
            same = same and told["size"] == ctypes.sizeof(mirror)
            for field, (offset, size) in told["fields"].items():
                mine = getattr(mirror, field)
                same = same and (mine.offset, mine.size) == (offset, size)
        if not same:
            raise PageError(f"{path} has another layout of the pages (version {abi['version']}) than this agent.")


class LimitsPage:
    """The limits page of one claim; made where it is missing, adopted where it stands. Raises PageError."""

    def __init__(self, library: PagesLibrary, directory: Path, claim_uid: str) -> None:
        self._calls = library.calls
        self._path = directory / "limits"
        self._page = c_void_p()
        self._must("make", self._calls.vcuda_limits_create(
            os.fsencode(self._path), UUID(claim_uid).bytes, ctypes.byref(self._page)
        ))  # fmt: skip

    def slots(self) -> list[LimitSlot]:
        """What the page says now. A slot whose writer was killed in the middle of its write is left out."""
        found = []
        limit = _Limit()
        for index in range(MAX_GPUS):
            result = self._calls.vcuda_limits_get(self._page, index, ctypes.byref(limit))
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
                    )
                )
        return found

    def index(self, gpu: UUID) -> int | None:
        """The slot of this GPU, by which the usage page knows it too."""
        limit = _Limit()
        for index in range(MAX_GPUS):
            result = self._calls.vcuda_limits_get(self._page, index, ctypes.byref(limit))
            if result >= 0 and limit.state in (SLOT_OPEN, SLOT_CLOSED) and bytes(limit.gpu_uuid) == gpu.bytes:
                return index
        return None

    def set(self, slot: LimitSlot) -> int:
        """Put these limits in force and open the slot; the slot's index. Raises PageError."""
        return self._must("write", self._calls.vcuda_limits_set(
            self._page, slot.gpu.bytes, UUID(slot.assignment_uid).bytes,
            slot.generation, slot.memory_bytes, slot.core_request, slot.core_limit,
        ))  # fmt: skip

    def close_gpu(self, gpu: UUID, generation: int) -> None:
        """From now on this GPU refuses allocations and launches of the claim. Raises PageError."""
        self._must("close", self._calls.vcuda_limits_close_gpu(self._page, gpu.bytes, generation))

    def heartbeat(self) -> None:
        """Say that the agent lives."""
        self._calls.vcuda_limits_heartbeat(self._page)

    def unmap(self) -> None:
        """Let go of the page; it stays as it is."""
        if self._page.value is not None:
            self._calls.vcuda_limits_unmap(self._page)
            self._page = c_void_p()

    def _must(self, verb: str, result: int) -> int:
        if result < 0:
            raise PageError(f"cannot {verb} {self._path}: {os.strerror(-result)}")
        return result


class UsagePage:
    """The usage page of one claim; made where it is missing, adopted where it stands. Raises PageError."""

    def __init__(self, library: PagesLibrary, directory: Path) -> None:
        self._library = library
        self.path = directory / "usage"
        page = c_void_p()
        result = library.calls.vcuda_usage_create(os.fsencode(self.path), ctypes.byref(page))
        if result < 0 and result != -errno.EBADMSG:
            raise PageError(f"cannot make {self.path}: {os.strerror(-result)}")
        if result >= 0:
            library.calls.vcuda_usage_unmap(page)
        # A page that its tenant has damaged is taken as it is: its claim must still be ended one day.
        self._file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)

    def read(self) -> bool:
        """Take a copy for `totals` and `processes`; the next `read` of any claim replaces it. False: damaged."""
        library = self._library
        view = memoryview(library.buffer)
        if os.preadv(self._file, [view[: library.processes_at]], 0) != library.processes_at:
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
        raw = _Totals()
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
        rows = (_ProcessInfo * self._library.max_processes)()
        count = self._library.calls.vcuda_usage_processes(self._library.buffer, rows, self._library.max_processes)
        return [Attached(row.pid, row.pidns, row.start_time) for row in rows[: max(count, 0)]]

    def reap(self, dead: list[Attached]) -> None:
        """Clear the slots of processes that are known to be dead, so that their memory counts as free."""
        calls = self._library.calls
        page = c_void_p()
        if calls.vcuda_usage_open(os.fsencode(self.path), 1, ctypes.byref(page)) < 0:
            return
        for process in dead:
            calls.vcuda_usage_reap(page, process.namespace, process.pid, process.start_ticks)
        # And those that were killed before they had written when they started.
        calls.vcuda_usage_reap_dead(page)
        calls.vcuda_usage_unmap(page)

    @property
    def owner_uid(self) -> int:
        """Whose processes may write the page."""
        return os.fstat(self._file).st_uid

    def give(self, uid: int, gid: int) -> None:
        """Make the page this user's. Raises OSError where the agent may not."""
        os.fchown(self._file, uid, gid)
        os.fchmod(self._file, 0o600)

    @property
    def inode(self) -> int:
        """The file's number, by which a process that maps it is known."""
        return os.fstat(self._file).st_ino

    def close(self) -> None:
        """Let go of the page; it stays as it is."""
        os.close(self._file)
