"""The C kernel, if it was built: `kernel/kernel.h` says what it does. It works on the board's own arrays."""

import ctypes
import hashlib
from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path

import numpy as np

from apps.scheduling.core.placement.board import Board, Tables
from apps.scheduling.core.placement.rows import MOST_ROWS, Answer, Answers, Moved, Shape, Special

SOURCES = Path(__file__).parent / "kernel"
BUILT = SOURCES / "build" / "libplacement.so"
FILTERS = 12


ARRAYS = (
    "count", "cpu", "ram", "all_cpu", "core", "memory", "size", "alive", "exclusion", "model", "near", "matrices",
)  # fmt: skip


class _Board(Structure):
    _fields_ = [
        *[(name, c_int32) for name in ("nodes", "width", "whole", "policy")],
        *[(name, c_void_p) for name in ARRAYS],
    ]


class _Mix(Structure):
    _fields_ = [
        ("total", c_int64),
        *[(name, c_int32) for name in ("cores", "memories", "cpus", "classes")],
        *[
            (name, c_void_p)
            for name in (
                "core_index", "memory_axis", "cpu_axis", "single", "class_core", "class_memory", "class_models",
                "several",
            )
        ],
        ("models", c_int32),
        ("buckets", c_int32),
        ("prices", c_void_p),
        ("bucket", c_void_p),
        ("watts", c_void_p),
    ]  # fmt: skip


class _Shape(Structure):
    _fields_ = [
        *[(name, c_int32) for name in ("count", "core", "exclusion")],
        *[(name, c_int64) for name in ("memory", "cpu", "ram")],
        *[(name, c_void_p) for name in ("models", "nodes")],
    ]


class _Special(Structure):
    _fields_ = [
        *[(name, c_int32) for name in ("listed", "want", "only")],
        *[(name, c_void_p) for name in ("nodes", "extra")],
    ]


class _Answer(Structure):
    _fields_ = [("node", c_int32), ("most", c_int32), ("removed", c_int64 * FILTERS)]


# Answers for many.
ANSWER = np.dtype([("node", np.int32), ("most", np.int32), ("removed", np.int64, FILTERS)])


def digest(sources: Path) -> int:
    """Return the digest of all sources, as the kernel's Makefile takes it when it builds them."""
    files = sorted([*sources.glob("*.c"), *sources.glob("*.h")], key=lambda file: file.name)
    return int(hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16], 16)


def load(file: Path = BUILT, sources: Path = SOURCES) -> ctypes.CDLL | None:
    """Return the library; None if it was not built, not for this machine, or from other sources than these."""
    try:
        library = ctypes.CDLL(str(file))
        library.kernel_sources.restype = c_uint64
        same = library.kernel_sources() == digest(sources)
    except (OSError, AttributeError):
        return None
    if not same:
        return None
    library.kernel_open.restype = c_void_p
    library.kernel_open.argtypes = [POINTER(_Board)]
    library.kernel_close.argtypes = [c_void_p]
    library.kernel_set_mix.argtypes = [c_void_p, POINTER(_Mix)]
    library.kernel_add_row.argtypes = [c_void_p, POINTER(_Shape)]
    library.kernel_drop_row.argtypes = [c_void_p, c_int32]
    library.kernel_changed.argtypes = [c_void_p, c_int32]
    library.kernel_move.argtypes = [c_void_p, c_void_p, c_int32, c_void_p, c_int32]
    library.kernel_move_many.argtypes = [c_void_p, c_int32, c_void_p, c_void_p, c_void_p, c_int32]
    library.kernel_best.argtypes = [c_void_p, c_int32, c_uint64, c_void_p, c_void_p, c_void_p]
    library.kernel_place_many.argtypes = [c_void_p, c_int32, c_void_p, c_void_p, c_void_p, c_void_p]
    for name in ("set_mix", "drop_row", "changed", "move", "move_many", "place_many", "close"):
        getattr(library, f"kernel_{name}").restype = None
    return library


LIBRARY = load()


class NativeKernel:
    """Rows of scores in C, for one board."""

    def __init__(self, board: Board, library: ctypes.CDLL) -> None:
        self.board, self._library = board, library
        self._handle: int | None = None
        arrays = [getattr(board, name).ctypes.data for name in ARRAYS]
        numbers = (len(board.nodes), board.width, board.whole, board.policy)
        self._handle = library.kernel_open(byref(_Board(*numbers, *arrays)))
        if self._handle is None:
            raise MemoryError("no memory for the placement kernel")
        self._rows: dict[int, tuple[Shape, _Shape]] = {}
        self._moved: dict[tuple[int, tuple[int, int, int, int]], int] = {}
        self._kept: list[_Shape] = []
        self._tables: Tables | None = None
        self._gpus = (c_int32 * board.width)()
        self._answer = _Answer()
        self._gpus_at, self._answer_at = ctypes.addressof(self._gpus), ctypes.addressof(self._answer)
        self._best, self._move = library.kernel_best, library.kernel_move

    def __del__(self) -> None:
        if self._handle is not None:
            self._library.kernel_close(self._handle)

    def set_mix(self, tables: Tables) -> None:
        """Replace the mix, and score every row anew."""
        self._tables = tables  # the kernel keeps pointers into it
        mix = _Mix(
            tables.total,
            len(tables.cores), len(tables.memories), len(tables.cpus), len(tables.class_core),
            tables.core_index.ctypes.data, tables.memories.ctypes.data, tables.cpus.ctypes.data,
            tables.single.ctypes.data, tables.class_core.ctypes.data, tables.class_memory.ctypes.data,
            tables.class_models.ctypes.data, tables.several.ctypes.data,
            len(tables.prices), len(tables.buckets), tables.prices.ctypes.data, tables.buckets.ctypes.data,
            tables.watts.ctypes.data,
        )  # fmt: skip
        self._library.kernel_set_mix(self._handle, byref(mix))

    def add_row(self, shape: Shape) -> int:
        """Add a row for the shape, and return its number."""
        raw = _Shape(
            shape.count, shape.core, shape.exclusion, shape.memory, shape.cpu, shape.ram,
            shape.models.ctypes.data, shape.nodes.ctypes.data,
        )  # fmt: skip
        row = int(self._library.kernel_add_row(self._handle, byref(raw)))
        if row < 0:
            raise MemoryError("no memory for a row of scores")
        self._rows[row] = shape, raw
        return row

    def drop_row(self, row: int) -> None:
        """Drop a row."""
        self._library.kernel_drop_row(self._handle, row)
        del self._rows[row]

    def changed(self, node: int) -> None:
        """Record that the node has changed."""
        self._library.kernel_changed(self._handle, node)

    def best(self, row: int, draw: int, special: Special | None) -> Answer:
        """Return the best node and its GPUs, or why none."""
        asked = None
        if special is not None:
            asked = byref(
                _Special(
                    len(special.nodes), special.want, special.only, special.nodes.ctypes.data, special.extra.ctypes.data
                )
            )
        node = self._best(self._handle, row, draw, asked, self._answer_at, self._gpus_at)
        if node < 0:
            return Answer(-1, (), tuple(self._answer.removed), self._answer.most)
        return Answer(node, tuple(self._gpus[: self._rows[row][0].count]))

    def move(self, node: int, places: Sequence[int], amounts: tuple[int, int, int, int], sign: int) -> None:
        """Take core and memory of each of these GPUs, CPU and RAM of the node, or give them back."""
        count = len(places)
        at = self._moved.get((count, amounts))
        if at is None:
            at = self._shape_of(count, amounts)
        if count == 1:
            self._gpus[0] = places[0]
        else:
            self._gpus[:count] = list(places)
        self._move(self._handle, at, node, self._gpus_at, sign)

    def move_many(self, kinds: Sequence[Moved], which: list[int], gpus: list[int], sign: int) -> None:
        """Move each claim of these kinds; GPUs are numbered through the board."""
        shapes = (_Shape * len(kinds))()
        for at, (count, (core, memory, cpu, ram)) in enumerate(kinds):
            shapes[at] = _Shape(count, core, 0, memory, cpu, ram, None, None)
        of, on = np.array(which, np.int32), np.array(gpus, np.int32)
        self._library.kernel_move_many(
            self._handle, len(which), ctypes.addressof(shapes), of.ctypes.data, on.ctypes.data, sign
        )

    def _shape_of(self, count: int, amounts: tuple[int, int, int, int]) -> int:
        if len(self._moved) >= MOST_ROWS:
            self._moved.clear()
            self._kept.clear()
        core, memory, cpu, ram = amounts
        raw = _Shape(count, core, 0, memory, cpu, ram, None, None)
        self._kept.append(raw)
        self._moved[count, amounts] = ctypes.addressof(raw)
        return ctypes.addressof(raw)

    def place_many(self, rows: list[int], draws: list[int] | None) -> Answers:
        """Place and take one after the other."""
        n = len(rows)
        asked, drawn = np.array(rows, np.int32), np.array(draws or [0] * n, np.uint64)
        answers = np.empty(n, ANSWER)
        gpus = np.empty((n, self.board.width), np.int32)
        self._library.kernel_place_many(
            self._handle, n, asked.ctypes.data, drawn.ctypes.data, answers.ctypes.data, gpus.ctypes.data
        )
        nodes = answers["node"]

        def whole(at: int) -> Answer:
            if (node := int(nodes[at])) < 0:
                return Answer(-1, (), answers["removed"][at].tolist(), int(answers["most"][at]))
            return Answer(node, gpus[at, : self._rows[rows[at]][0].count].tolist())

        return Answers(nodes.tolist(), (nodes * self.board.width + gpus[:, 0]).tolist(), whole)
