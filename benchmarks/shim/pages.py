"""A claim's pages, written and read by the library that the agent uses."""

import ctypes
import json
import os
import uuid
from pathlib import Path
from typing import Any

FLAG_BEST_EFFORT, FLAG_NO_TURNS, FLAG_MPS, FLAG_BORROWS = 1, 4, 8, 16
POLICIES = ("burst", "fixed", "fair", "weighted", "average", "preempt", "native")
NO_MEMORY_LIMIT = 2**64 - 1
BACK_ENDS = {"turns": 0, "native": FLAG_NO_TURNS, "mps": FLAG_NO_TURNS | FLAG_MPS}
# `ends_ns` of a turn: closed, and no turns are given (vcuda_pages.h).
TURN_CLOSED, TURN_FREE = 0, 2**64 - 1


class PageRefused(Exception):
    """The library returned an error; the message names the call and the errno."""


class Library:
    """``libvcuda-pages.so`` with the layout of its structures, from ``abi.json`` of the same build."""

    def __init__(self, build: Path) -> None:
        self._functions = ctypes.CDLL(str(build / "libvcuda-pages.so"))
        self._structs = json.loads((build / "abi.json").read_text())["structs"]

    def call(self, name: str, *arguments: object) -> int:
        """Call a function; return its result.

        Raises :class:`PageRefused` if it is negative.
        """
        result = int(self._functions[name](*arguments))
        if result < 0:
            raise PageRefused(f"{name}: {os.strerror(-result)}")
        return result

    def forget(self, name: str, page: ctypes.c_void_p) -> None:
        """Call one of the functions that return nothing."""
        function = self._functions[name]
        function.restype = None
        function(page)

    def pack(self, struct: str, values: dict[str, int | bytes]) -> ctypes.Array[ctypes.c_char]:
        """Return a structure with these fields; the others are zero."""
        layout = self._structs[struct]
        filled = bytearray(layout["size"])
        for field, value in values.items():
            offset, size = layout["fields"][field]
            filled[offset : offset + size] = value if isinstance(value, bytes) else value.to_bytes(size, "little")
        return ctypes.create_string_buffer(bytes(filled), layout["size"])

    def empty(self, struct: str) -> ctypes.Array[ctypes.c_char]:
        return ctypes.create_string_buffer(self._structs[struct]["size"])

    def place(self, struct: str, field: str) -> int:
        """Return the field's offset in bytes."""
        return int(self._structs[struct]["fields"][field][0])

    def unpack(self, struct: str, filled: ctypes.Array[ctypes.c_char]) -> dict[str, int]:
        fields = self._structs[struct]["fields"].items()
        return {name: int.from_bytes(filled.raw[at : at + size], "little") for name, (at, size) in fields}


class Claim:
    """A claim's directory with its three pages, and the limits in force."""

    def __init__(self, library: Library, directory: Path) -> None:
        directory.mkdir()
        self.directory = directory
        self._library = library
        self._uid = uuid.uuid4().bytes
        self._generation = 0
        self._limits, self._usage, self._turns = (ctypes.c_void_p() for _ in range(3))
        path = str(directory / "{}")
        create = (ctypes.c_uint8 * 16).from_buffer_copy(self._uid)
        library.call("vcuda_limits_create", path.format("limits").encode(), create, ctypes.byref(self._limits))
        library.call("vcuda_usage_create", path.format("usage").encode(), ctypes.byref(self._usage))
        library.call("vcuda_turns_create", path.format("turns").encode(), ctypes.byref(self._turns))

    def limit(self, gpu: str, percent: int = 100, **other: Any) -> int:
        """Write the limits of one GPU (``GPU-…``); return its index in the pages.

        ``memory`` in bytes, ``request`` percent (the same as the limit unless given), ``policy`` by name, ``weight``,
        ``ceiling``, ``parts``, ``best_effort`` (policy ``preempt``), ``backend``, ``promised`` and ``host`` bytes of
        one that borrows memory. Raises :class:`PageRefused` if the library rejects them.
        """
        self._generation += 1
        values: dict[str, int | bytes] = {
            "gpu_uuid": uuid.UUID(gpu.removeprefix("GPU-")).bytes,
            "assignment_uid": self._uid,
            "generation": self._generation,
            "memory_bytes": other.get("memory") or NO_MEMORY_LIMIT,
            "core_request": other.get("request", percent),
            "core_limit": percent,
            "policy": POLICIES.index(other.get("policy", "burst")),
            "flags": BACK_ENDS[other.get("backend", "turns")]
            | FLAG_BEST_EFFORT * bool(other.get("best_effort"))
            | FLAG_BORROWS * ("promised" in other),
            "memory_request": other.get("promised", 0),
            "host_memory_bytes": other.get("host", 0),
            **{name: other.get(name, 0) for name in ("weight", "ceiling", "parts")},
        }
        return self._library.call("vcuda_limits_set", self._limits, self._library.pack("vcuda_limit", values))

    def usage(self, index: int = 0) -> dict[str, int]:
        """Return the totals of ``struct vcuda_totals``: bytes and nanoseconds."""
        totals = self._library.empty("vcuda_totals")
        self._library.call("vcuda_usage_totals", self._usage, ctypes.c_uint32(index), totals)
        return self._library.unpack("vcuda_totals", totals)

    def turn(self, index: int = 0) -> dict[str, int]:
        """Read ``struct vcuda_turn`` of one GPU as the arbiter last wrote it."""
        turn = self._library.empty("vcuda_turn")
        at, size = self._library.place("vcuda_turns", "turn"), len(turn)
        with (self.directory / "turns").open("rb") as page:
            turn.raw = os.pread(page.fileno(), size, at + index * size)
        return self._library.unpack("vcuda_turn", turn)

    def close(self) -> None:
        for name, page in (("limits", self._limits), ("usage", self._usage), ("turns", self._turns)):
            self._library.forget(f"vcuda_{name}_unmap", page)
