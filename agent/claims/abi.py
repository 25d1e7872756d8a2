"""The layout of libvcuda's pages: the helper library, and this side's mirror of its C structures.

The library's header is the contract; the mirror is checked against the library's own description whenever it is loaded.
"""

import ctypes
import json
from ctypes import POINTER, c_char_p, c_int, c_int64, c_uint8, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any, Final

ABI_VERSION: Final = 2
MAX_GPUS: Final = 16


class PageError(Exception):
    """Failure to make, open or write a page; the message names the page and the reason."""


Uuid16 = c_uint8 * 16


class RawLimit(ctypes.Structure):
    _fields_ = [
        ("index", c_uint32),
        ("state", c_uint32),
        ("gpu_uuid", Uuid16),
        ("assignment_uid", Uuid16),
        ("generation", c_uint64),
        ("memory_bytes", c_uint64),
        ("core_request", c_uint32),
        ("core_limit", c_uint32),
        ("policy", c_uint32),
        ("weight", c_uint32),
        ("ceiling", c_uint32),
        ("parts", c_uint32),
        ("flags", c_uint32),
        ("reserved", c_uint32),
        ("memory_request", c_uint64),
        ("host_memory_bytes", c_uint64),
        ("returning_bytes", c_uint64),
    ]


class RawTotals(ctypes.Structure):
    _fields_ = [
        ("memory_bytes", c_uint64),
        ("context_bytes", c_uint64),
        ("gpu_time_ns", c_uint64),
        ("throttled_ns", c_uint64),
        ("launches", c_uint64),
        ("refused", c_uint64),
        ("observed_generation", c_uint64),
        ("inflight_ns", c_uint64),
        ("last_end_ns", c_uint64),
        ("last_launch_ns", c_uint64),
        ("yielded", c_uint64),
        ("processes", c_uint32),
        ("waiting", c_uint32),
        ("accounting", c_uint32),
        ("longest_us", c_uint32),
    ]


class RawProcess(ctypes.Structure):
    _fields_ = [
        ("slot", c_uint32),
        ("pid", c_uint32),
        ("pidns", c_uint64),
        ("start_time", c_uint64),
        ("observed_gen", c_uint32),
        ("unmovable", c_uint32),
    ]


class RawArrival(ctypes.Structure):
    _fields_ = [("pid", c_uint32), ("reserved", c_uint32), ("start_time", c_uint64)]


_MIRRORS: dict[str, type[ctypes.Structure]] = {
    "vcuda_limit": RawLimit,
    "vcuda_totals": RawTotals,
    "vcuda_process_info": RawProcess,
    "vcuda_arrival": RawArrival,
}
_SIGNATURES: dict[str, list[Any]] = {
    "vcuda_limits_create": [c_char_p, c_char_p, POINTER(c_void_p)],
    "vcuda_limits_open": [c_char_p, c_int, POINTER(c_void_p)],
    "vcuda_limits_unmap": [c_void_p],
    "vcuda_limits_set": [c_void_p, POINTER(RawLimit)],
    "vcuda_limits_close_gpu": [c_void_p, c_char_p, c_uint64],
    "vcuda_limits_move": [c_void_p, c_char_p, c_char_p],
    "vcuda_limits_heartbeat": [c_void_p],
    "vcuda_limit_alone": [POINTER(RawLimit)],
    "vcuda_limits_get": [c_void_p, c_uint32, POINTER(RawLimit)],
    "vcuda_turns_open": [c_char_p, c_int, POINTER(c_void_p)],
    "vcuda_turns_create": [c_char_p, POINTER(c_void_p)],
    "vcuda_turns_unmap": [c_void_p],
    "vcuda_usage_create": [c_char_p, POINTER(c_void_p)],
    "vcuda_usage_unmap": [c_void_p],
    "vcuda_usage_totals": [c_void_p, c_uint32, POINTER(RawTotals)],
    "vcuda_usage_arrive": [c_char_p, c_uint64, POINTER(RawArrival), c_uint32, c_int64],
    "vcuda_usage_processes": [c_void_p, POINTER(RawProcess), c_uint32],
    "vcuda_usage_lending": [c_void_p, c_uint32, c_void_p],
}
_WITHOUT_RESULT = frozenset({"vcuda_limits_unmap", "vcuda_limits_heartbeat", "vcuda_turns_unmap", "vcuda_usage_unmap"})


class PagesLibrary:
    """The loaded libvcuda-pages.so, checked against this module's mirror. Raises PageError."""

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
        self.path, self._lending = path, abi["structs"]["vcuda_lending"]
        for name, arguments in _SIGNATURES.items():
            call = getattr(self.calls, name)
            call.argtypes = arguments
            call.restype = None if name in _WITHOUT_RESULT else c_int
        usage, limits = (abi["structs"][name]["fields"] for name in ("vcuda_usage", "vcuda_limits"))
        self.limits_bytes, self.limits_gen_at = int(abi["limits_size"]), int(limits["gen"][0])
        self.usage_bytes: int = abi["usage_size"]
        # The constant fields of every usage page: offset and bytes.
        self.usage_header = [
            (usage[field][0], value.to_bytes(usage[field][1], "little"))
            for field, value in (("magic", abi["usage_magic"]), ("version", ABI_VERSION), ("size", self.usage_bytes))
        ]
        self.max_processes: int = abi["max_processes"]
        self.slots_used_at: int = usage["slots_used"][0]
        self.processes_at: int = usage["process"][0]
        self.process_bytes: int = abi["structs"]["vcuda_process"]["size"]
        self._find_turns(abi)
        process, gpu = abi["structs"]["vcuda_process"]["fields"], abi["structs"]["vcuda_gpu_usage"]
        # Offset and bytes.
        self.order_fields: list[tuple[int, int]] = [
            tuple(process[name]) for name in ("lending_slot", "orders_done", "movable_bytes")
        ]
        self.process_gpu_at: int = process["gpu"][0]
        self.gpu_usage_bytes: int = gpu["size"]
        self.accounting_at: int = gpu["fields"]["accounting"][0]
        self.memory_at: tuple[int, ...] = tuple(gpu["fields"][name][0] for name in ("memory_bytes", "context_bytes"))
        # One buffer for all claims: a usage page's copy is decoded at once.
        self.buffer = ctypes.create_string_buffer(self.usage_bytes)

    def _find_turns(self, abi: Any) -> None:
        """Find the fields of the turns page."""
        self.turns_bytes: int = abi["turns_size"]
        self.turns_heartbeat_at: int = abi["structs"]["vcuda_turns"]["fields"]["heartbeat_ns"][0]
        self.turns_at: int = abi["structs"]["vcuda_turns"]["fields"]["turn"][0]
        self.turn_bytes: int = abi["structs"]["vcuda_turn"]["size"]
        self.turn_ends_at: int = abi["structs"]["vcuda_turn"]["fields"]["ends_ns"][0]
        self.turn_share_at: int = abi["structs"]["vcuda_turn"]["fields"]["share"][0]
        self.memory_turns_at: int = abi["structs"]["vcuda_turns"]["fields"]["memory"][0]
        self.memory_turn: Any = abi["structs"]["vcuda_memory_turn"]

    def lending(self, index: int) -> dict[str, int]:
        """Return the fields of `vcuda_lending` of the GPU in this slot, of the page in the buffer."""
        found, fields = ctypes.create_string_buffer(self._lending["size"]), self._lending["fields"]
        self.calls.vcuda_usage_lending(self.buffer, index, found)
        return {name: int.from_bytes(found.raw[at : at + size], "little") for name, (at, size) in fields.items()}

    def _check(self, abi: Any, path: Path) -> None:
        same = abi["version"] == ABI_VERSION and abi["max_gpus"] == MAX_GPUS
        for name, mirror in _MIRRORS.items():
            described = abi["structs"][name]
            same = same and described["size"] == ctypes.sizeof(mirror)
            for field, (offset, size) in described["fields"].items():
                mine = getattr(mirror, field)
                same = same and (mine.offset, mine.size) == (offset, size)
        if not same:
            raise PageError(f"{path} has another layout of the pages (version {abi['version']}) than this agent.")
