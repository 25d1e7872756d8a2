"""The common part of the fast back ends: a row of scores for each shape of request, and its exceptions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from apps.scheduling.core.placement.board import UNSEEN, Bytes, Int32, Tables, allowed
from apps.scheduling.core.placement.filters import Filter, reasons
from apps.scheduling.core.placement.fragmentation import Prices
from apps.scheduling.core.placement.plain import as_placed, draw
from apps.scheduling.core.values import Held, Label, NodeState, Placed, Refused, Request

if TYPE_CHECKING:
    from apps.scheduling.core.placement.native import NativeKernel

# The most rows, after which the oldest goes: for 5,000 nodes one takes 200 KiB.
MOST_ROWS = 256

# The GPUs of a label, and how often it is on each.
Where = Mapping[Label, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Shape:
    """The part of a request on which its row depends; `models` and `nodes` say which fit."""

    count: int
    core: int
    exclusion: int
    memory: int
    cpu: int
    ram: int
    models: Bytes
    nodes: Bytes


class Special(NamedTuple):
    """The differences from the row for one request, on these nodes: see the kernel's `struct special`."""

    nodes: Int32
    extra: Bytes
    want: int
    only: bool


# The number of GPUs, and the amounts moved on each, or on their node: core, memory, CPU and RAM.
Moved = tuple[int, tuple[int, int, int, int]]


class Answer(NamedTuple):
    """A node and its places; or node -1, the GPUs that each filter removed, and the most that fit on one node."""

    node: int
    places: Sequence[int]
    removed: Sequence[int] = ()
    most: int = 0


class Answers(NamedTuple):
    """Many answers: the nodes; the first place of each, numbered through the board; and a whole answer, by its number.

    If a node is -1 its first place means nothing.
    """

    nodes: Sequence[int]
    firsts: Sequence[int]
    whole: Callable[[int], Answer]


_key = attrgetter(
    "gpu_count", "core_request", "memory_mib", "gpu_model", "node_selector", "cpu_milli", "ram_mib", "exclusion"
)
_amounts = attrgetter("core_request", "memory_mib", "cpu_milli", "ram_mib")
# The constructor of `Placed` without a Python call for each of many.
_placed = tuple.__new__


class Rows:
    """The decisions of one board, by its kernel."""

    def __init__(self, kernel: "NativeKernel", *, draws: bool) -> None:
        self.kernel, self.board, self._draws = kernel, kernel.board, draws
        self._rows: dict[tuple[object, ...], int] = {}

    def set_mix(self, prices: Prices) -> None:
        """Replace the mix, or the prices."""
        self.kernel.set_mix(Tables.of(prices, self.board))

    def set_machine(self, state: NodeState) -> None:
        """Replace the CPU and RAM of a node."""
        self.board.machine(state)
        self.kernel.changed(self.board.place_of[state.name])

    def decide(self, request: Request, held: Held, where: Where) -> Placed | Refused:
        """Choose GPUs for the request, or return why none fits."""
        special = self._special(request, held, where) if held or request.labels else None
        row = self.row(request)
        return self._as_answer(request, self.kernel.best(row, self._draw(request), special))

    def place_many(self, requests: Sequence[Request]) -> list[Placed | Refused]:
        """Place and take the requests one after the other; they have no labels."""
        found = list(map(self._rows.get, map(_key, requests)))
        if None not in found:
            return self._place_known(requests, cast(list[int], found))
        told: list[Placed | Refused] = []
        waiting: list[Request] = []
        rows: list[int] = []
        for request in requests:
            row = self._rows.get(_key(request))
            if row is None:
                # A new row may push out one that a waiting request is to use.
                if len(self._rows) >= MOST_ROWS and waiting:
                    told += self._place_known(waiting, rows)
                    waiting, rows = [], []
                row = self.row(request)
            waiting.append(request)
            rows.append(row)
        return told + self._place_known(waiting, rows)

    def _place_known(self, requests: Sequence[Request], rows: list[int]) -> list[Placed | Refused]:
        if not requests:
            return []
        draws = [draw(request.key) for request in requests] if self._draws else None
        nodes, firsts, whole = self.kernel.place_many(rows, draws)
        named, told = self.board.named, list[Placed | Refused]()
        for at, (request, node, first) in enumerate(zip(requests, nodes, firsts, strict=True)):
            if node >= 0 and request.gpu_count == 1:
                told.append(_placed(Placed, ((named[first],), "")))
            else:
                told.append(self._as_answer(request, whole(at)))
        return told

    def row(self, request: Request) -> int:
        """Return the number of the request's row."""
        key = _key(request)
        row = self._rows.get(key)
        if row is None and request.exclusion is not None:
            key = (*key[:-1], True)
            row = self._rows.get(key)
        if row is None:
            if len(self._rows) >= MOST_ROWS:
                self.kernel.drop_row(self._rows.pop(next(iter(self._rows))))
            self._rows[key] = row = self.kernel.add_row(self._shape(request))
        return row

    def move(self, gpus: Sequence[str], node: str, request: Request, sign: int) -> None:
        """Take the room of the request on these GPUs, or give it back; without GPUs, on this node."""
        spot, amounts = self.board.spot, _amounts(request)
        if len(gpus) == 1:
            number, place = spot[gpus[0]]
            self.kernel.move(number, (place,), amounts, sign)
            return
        by_node: dict[int, list[int]] = {}
        for uuid in gpus:
            number, place = spot[uuid]
            by_node.setdefault(number, []).append(place)
        if not gpus and node in self.board.place_of:
            by_node[self.board.place_of[node]] = []
        for number, places in by_node.items():
            self.kernel.move(number, places, amounts, sign)

    def move_many(self, moves: Sequence[tuple[Sequence[str], Request]], sign: int) -> None:
        """Take the room of each request on GPUs of one node, or give it back."""
        if not moves:
            return
        # No loop in Python: batches have thousands.
        on, requests = zip(*moves, strict=True)
        gpus = list(map(self.board.number.__getitem__, chain.from_iterable(on)))
        keys: list[Moved] = list(zip(map(len, on), map(_amounts, requests), strict=True))
        kinds = {kind: at for at, kind in enumerate(dict.fromkeys(keys))}
        self.kernel.move_many(list(kinds), list(map(kinds.__getitem__, keys)), gpus, sign)

    def _shape(self, request: Request) -> Shape:
        wanted = set(request.node_selector)
        return Shape(
            request.gpu_count,
            request.core_request,
            0 if request.exclusion is None else UNSEEN,
            request.memory_mib,
            request.cpu_milli,
            request.ram_mib,
            np.array(allowed(request.models, self.board.models), np.uint8),
            np.array([wanted <= set(node.state.labels) for node in self.board.nodes], np.uint8),
        )

    def _draw(self, request: Request) -> int:
        return draw(request.key) if self._draws else 0

    def _as_answer(self, request: Request, answer: Answer) -> Placed | Refused:
        if answer.node < 0:
            return Refused(reasons(request, answer.removed, answer.most, tuple(self.board.sick.values())))
        uuids = self.board.uuids[answer.node]
        return as_placed(self.board.nodes[answer.node].state.name, [uuids[place] for place in answer.places])

    def _special(self, request: Request, held: Held, where: Where) -> Special | None:
        carriers = {label.kind: where.get(label, {}) for label in request.labels}
        together, apart = carriers.get("affinity", {}), carriers.get("anti-affinity", {})
        alone = carriers.get("exclusion", {})
        board = self.board
        at = np.fromiter(map(board.number.get, held, repeat(-1)), np.int64, len(held))
        withheld = np.array(list(held.values()), np.int64).reshape(-1, 2)[at >= 0]
        at = at[at >= 0]
        beside = [board.spot[uuid][0] for uuid in {*together, *apart, *alone} if uuid in board.spot]
        listed = np.unique(np.concatenate([at // board.width, np.array(beside, np.int64)]))
        if not listed.size and not together:
            return None
        # No loop in Python: most of a fleet may be withheld.
        short = board.core.reshape(-1)[at] - withheld[:, 0] < request.core_request
        short |= board.memory.reshape(-1)[at] - withheld[:, 1] < request.memory_mib
        marks: Bytes = np.zeros(board.core.size, np.uint8)
        marks[at[short]] = Filter.RESERVED
        extra: Bytes = marks.reshape(board.core.shape)[listed] if listed.size else np.zeros((1, board.width), np.uint8)
        for row, node in enumerate(listed) if together or apart else ():
            for place, uuid in enumerate(board.uuids[node]):
                if extra[row, place]:
                    continue
                if together and uuid not in together:
                    extra[row, place] = Filter.AFFINITY
                elif uuid in apart:
                    extra[row, place] = Filter.ANTI_AFFINITY
        want = 0
        if request.exclusion is not None:
            want = board.exclusions.get(Label("exclusion", request.tenant, request.exclusion), UNSEEN)
        return Special(listed.astype(np.int32), extra, want, bool(together))
