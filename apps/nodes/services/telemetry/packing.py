"""Encoder of frames in PostgreSQL's binary COPY format, written by hand because it runs most often.

An array is its dimensions, flags, element type, length and lower bound, then each element with its length before it;
numbers are big-endian. One struct packs a whole array.
"""

import functools
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from msgspec import UNSET

from agent import wire

HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
TRAILER = struct.pack(">h", -1)
# In the table's order.
COLUMNS = (
    "node_id", "at", "seq", "gpu_ids", "gpu_core", "gpu_memory", "gpu_watts", "gpu_celsius", "gpu_sm_mhz",
    "gpu_memory_mhz", "uids", "on_gpus", "core", "core_limit", "throttled", "memory", "memory_limit", "processes",
    "gpu_time_ms", "launches", "gpu_borrowed", "borrowed", "memory_out", "moved", "stood",
)  # fmt: skip
# PostgreSQL counts microseconds from this time.
EPOCH_SECONDS = datetime(2000, 1, 1, tzinfo=UTC).timestamp()
_BEGIN = struct.Struct(">hiqiqiq")
NULL = b"\xff\xff\xff\xff"
# `_borrowed` of a frame in which nothing borrows: nearly every one.
_NOTHING_BORROWED = NULL * 5


class Carried(NamedTuple):
    """Known facts of an assignment on a node."""

    uid: bytes
    gpu_id: int
    gpu_uuid: str
    claim_uid: str


class _Kind(NamedTuple):
    oid: int
    letter: str
    size: int


INT2, INT4, INT8 = _Kind(21, "h", 2), _Kind(23, "i", 4), _Kind(20, "q", 8)
FLOAT4, UUID = _Kind(700, "f", 4), _Kind(2950, "16s", 16)
_EMPTY = {kind: struct.pack(">iiii", 12, 0, 0, kind.oid) for kind in (INT2, INT4, INT8, FLOAT4, UUID)}


@functools.cache
def _format(kind: _Kind, count: int) -> tuple[Callable[..., bytes], list[Any]]:
    """Return the packer of an array of this size, and its arguments with gaps for the elements."""
    packer = struct.Struct(">iiiiii" + f"i{kind.letter}" * count)
    return packer.pack, [packer.size - 4, 1, 0, kind.oid, count, 1, *([kind.size, None] * count)]


def _array(kind: _Kind, values: Sequence[Any]) -> bytes:
    count = len(values)
    if not count:
        return _EMPTY[kind]
    if None in values:
        return _with_nulls(kind, values)
    pack, arguments = _format(kind, count)
    arguments = arguments.copy()
    arguments[7::2] = values
    return pack(*arguments)


def _with_nulls(kind: _Kind, values: Sequence[Any]) -> bytes:
    element = struct.Struct(f">i{kind.letter}")
    body = b"".join(NULL if value is None else element.pack(kind.size, value) for value in values)
    return struct.pack(">iiiiii", 20 + len(body), 1, 1, kind.oid, len(values), 1) + body


def row(
    *, node_id: int, usage: wire.Usage, latest: float, gpu_ids: Mapping[str, int], carried: Mapping[str, Carried]
) -> bytes:
    """Encode one frame: only the node's own GPUs and assignments, each once.

    `latest` bounds the time: a fast clock must not make its samples the latest for ever. Raises OverflowError.
    """
    gpus = [gpu for gpu in usage.gpus if gpu.uuid in gpu_ids]
    items = [item for item in usage.assignments if item.uid in carried]
    if len(items) != len({item.uid for item in items}):
        items = list({item.uid: item for item in items}.values())
    known = [carried[item.uid] for item in items]
    at_us = round((min(usage.at, latest) - EPOCH_SECONDS) * 1_000_000)
    return b"".join(
        (
            _BEGIN.pack(len(COLUMNS), 8, node_id, 8, at_us, 8, usage.seq),
            _array(INT8, [gpu_ids[gpu.uuid] for gpu in gpus]),
            _array(FLOAT4, [gpu.core_percent for gpu in gpus]),
            _array(INT8, [gpu.memory_bytes for gpu in gpus]),
            _array(FLOAT4, [gpu.power_watts for gpu in gpus]),
            _array(FLOAT4, [gpu.temperature_celsius for gpu in gpus]),
            _array(INT4, [gpu.sm_clock_mhz for gpu in gpus]),
            _array(INT4, [gpu.memory_clock_mhz for gpu in gpus]),
            _array(UUID, [one.uid for one in known]),
            _array(INT8, [one.gpu_id for one in known]),
            _array(FLOAT4, [item.core_percent for item in items]),
            _array(INT2, [item.core_limit_percent for item in items]),
            _array(FLOAT4, [item.throttled_percent for item in items]),
            _array(INT8, [item.memory_bytes for item in items]),
            _array(INT8, [item.memory_limit_bytes for item in items]),
            _array(INT4, [item.processes for item in items]),
            _array(FLOAT4, [item.gpu_time_ms for item in items]),
            _array(FLOAT4, [item.launches_per_second for item in items]),
            _borrowed(gpus, items, known),
        )
    )


def _borrowed(gpus: Sequence[wire.GpuUsage], items: Sequence[wire.AssignmentUsage], known: Sequence[Carried]) -> bytes:
    """Encode what the assignments borrow, and of each GPU, what they borrow of it: five columns."""
    found = [None if item.borrowed is UNSET else item.borrowed for item in items]
    if not any(found):
        return _NOTHING_BORROWED
    lent: dict[str, int] = {}
    for one, place in zip(found, known, strict=True):
        if one is not None:
            lent[place.gpu_uuid] = lent.get(place.gpu_uuid, 0) + one.borrowed_bytes
    return b"".join(
        (
            _array(INT8, [lent.get(gpu.uuid) for gpu in gpus]),
            _array(INT8, [None if one is None else one.borrowed_bytes for one in found]),
            _array(INT8, [None if one is None else one.out_bytes for one in found]),
            _array(FLOAT4, [None if one is None else one.moved_bytes_per_second for one in found]),
            _array(FLOAT4, [None if one is None else one.stood_percent for one in found]),
        )
    )
