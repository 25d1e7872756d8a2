"""The rows with numpy: all nodes that changed are scored at once. The kernel's numbers, array by array.

Arrays are (nodes, places) unless said otherwise; places beyond a node's GPUs fit nothing and have nothing free.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from apps.scheduling.core.placement import topology
from apps.scheduling.core.placement.board import UNKNOWN, Board, Int32, Int64, Tables
from apps.scheduling.core.placement.filters import Filter
from apps.scheduling.core.placement.policies import BEFORE, POLICIES
from apps.scheduling.core.placement.rows import Answer, Answers, Moved, Shape, Special
from apps.scheduling.core.placement.sums import Sums

NO_FIT = -(1 << 63)
FILTERS = int(Filter.GPUS_ON_ONE_NODE)
# A place that no node has is removed by no filter.
NOWHERE = FILTERS
NAMES = list(POLICIES)

Bools = npt.NDArray[np.bool_]


@dataclass
class _Row:
    """Scores and counts of each node, and the place of the one GPU where one is asked for."""

    shape: Shape
    at: int
    score: Int64
    place: Int32
    removed: Int64
    totals: Int64
    # The mix is another: what fits has another score.
    stale: bool = False


class VectorKernel:
    """Rows of scores with numpy, for one board."""

    def __init__(self, board: Board) -> None:
        self.board, self._policy = board, NAMES[board.policy]
        self._rows: dict[int, _Row] = {}
        self._next = 0
        self._log: list[int] = []
        self._sums = Sums(board)
        self._there = np.arange(board.width) < board.count[:, None]
        self._everywhere = np.arange(len(board.nodes))

    def set_mix(self, tables: Tables) -> None:
        """Another mix: every row is scored anew."""
        self._sums.set_mix(tables)
        for row in self._rows.values():
            row.stale = True

    def add_row(self, shape: Shape) -> int:
        """A row for the shape: its number."""
        n = len(self.board.nodes)
        self._next += 1
        self._rows[self._next] = _Row(
            shape,
            -1,
            np.full(n, NO_FIT, np.int64),
            np.zeros(n, np.int32),
            np.zeros((n, FILTERS), np.int64),
            np.zeros(FILTERS, np.int64),
        )
        return self._next

    def drop_row(self, row: int) -> None:
        """The row is not asked any more."""
        del self._rows[row]

    def changed(self, node: int) -> None:
        """Something of the node is not as it was."""
        self._sums.known[node] = False
        self._log.append(node)
        if len(self._log) > 4 * len(self.board.nodes) + 1024:
            self._log.clear()
            for row in self._rows.values():
                row.at = -1

    def move(self, node: int, places: Sequence[int], amounts: tuple[int, int, int, int], sign: int) -> None:
        """Take so much core and memory of each of these GPUs, CPU and RAM of the node, or give it back."""
        board, (core, memory, cpu, ram) = self.board, amounts
        for place in places:
            board.core[node, place] -= sign * core
            board.memory[node, place] -= sign * memory
        if cpu and board.cpu[node] != UNKNOWN:
            board.cpu[node] -= sign * cpu
        if ram and board.ram[node] != UNKNOWN:
            board.ram[node] -= sign * ram
        self.changed(node)

    def move_many(self, kinds: Sequence[Moved], which: list[int], gpus: list[int], sign: int) -> None:
        """Move each claim of these kinds; GPUs are numbered through the board."""
        at = 0
        for count, amounts in (kinds[kind] for kind in which):
            spots = [divmod(number, self.board.width) for number in gpus[at : at + count]]
            self.move(spots[0][0], [place for _, place in spots], amounts, sign)
            at += count

    def place_many(self, rows: list[int], draws: list[int] | None) -> Answers:
        """Place and take one after the other."""
        answers = []
        for row, draw in zip(rows, draws or [0] * len(rows), strict=True):
            answer = self.best(row, draw, None)
            if answer.node >= 0:
                shape = self._rows[row].shape
                self.move(answer.node, answer.places, (shape.core, shape.memory, shape.cpu, shape.ram), 1)
            answers.append(answer)
        firsts = [one.node * self.board.width + one.places[0] if one.places else -1 for one in answers]
        return Answers([one.node for one in answers], firsts, answers.__getitem__)

    def best(self, number: int, draw: int, special: Special | None) -> Answer:
        """The node and its GPUs, or why none."""
        row = self._rows[number]
        self._catch_up(row)
        score, removed, most = row.score, row.totals, row.removed[:, Filter.NONE]
        verdicts = None
        if special is not None:
            listed = special.nodes
            verdicts = self._verdicts(row.shape, listed, special.extra[: len(listed)], special.want)
            score, removed, most = self._considered(row, special, verdicts)
        node = self._first(score, draw)
        if node < 0:
            return Answer(-1, (), removed.tolist(), int(most.max()))
        if special is None and row.shape.count == 1 and self._policy != "random":
            return Answer(node, (int(row.place[node]),))
        at = np.flatnonzero(special.nodes == node) if special is not None else ()
        if verdicts is not None and len(at):
            fits = verdicts[at] == Filter.NONE
        else:
            fits = self._verdicts(row.shape, np.array([node]), None, row.shape.exclusion) == Filter.NONE
        return Answer(node, self._chosen(row.shape, node, fits, draw))

    def _first(self, score: Int64, draw: int) -> int:
        node = int(score.argmax())
        if score[node] == NO_FIT:
            return -1
        if self._policy == "random":
            alike = np.flatnonzero(score == score[node])
            return int(alike[draw % len(alike)])
        return node

    def _catch_up(self, row: _Row) -> None:
        """What changed since the row was last asked, each node once."""
        if row.at == len(self._log) and not row.stale:
            return
        nodes = self._everywhere
        if row.at >= 0:
            changed = set(self._log[row.at :])
            if row.stale:
                changed.update(np.flatnonzero(row.score != NO_FIT).tolist())
            nodes = np.array(sorted(changed), np.int64)
        row.stale = False
        row.at = len(self._log)
        verdicts = self._verdicts(row.shape, nodes, None, row.shape.exclusion)
        removed = _counted(verdicts)
        row.totals += removed.sum(0) - row.removed[nodes].sum(0)
        row.removed[nodes] = removed
        row.score[nodes], row.place[nodes] = self._scores(row.shape, nodes, verdicts == Filter.NONE)

    def _considered(self, row: _Row, special: Special, verdicts: Int64) -> tuple[Int64, Int64, Int64]:
        """Scores, counts by filter and GPUs that fit by node, with the listed nodes as they are for this request."""
        listed, mine = special.nodes, _counted(verdicts)
        removed = row.totals - row.removed[listed].sum(0)
        score, most = row.score.copy(), row.removed[:, Filter.NONE].copy()
        if special.only:
            removed[Filter.AFFINITY] += removed[Filter.NONE] + removed[Filter.EXCLUSION]
            removed[Filter.NONE] = removed[Filter.EXCLUSION] = 0
            score[:], most[:] = NO_FIT, 0
        score[listed] = self._scores(row.shape, listed, verdicts == Filter.NONE)[0]
        most[listed] = mine[:, Filter.NONE]
        return score, removed + mine.sum(0), most

    def _verdicts(self, shape: Shape, nodes: npt.NDArray[np.integer], extra: object, want: int) -> Int64:
        """The first filter that removes each GPU: later ones are written first."""
        board = self.board
        core, memory, cpu, ram = board.core[nodes], board.memory[nodes], board.cpu[nodes], board.ram[nodes]
        exclusion = board.exclusion[nodes]
        if want == 0:
            kept_off = exclusion != 0
        else:
            kept_off = ((core < board.whole) | (memory < board.size[nodes])) & (exclusion != want)
        verdict = np.where(kept_off, int(Filter.EXCLUSION), int(Filter.NONE))
        if extra is not None:
            verdict = np.where(extra, extra, verdict)  # type: ignore[call-overload]
        if shape.ram:
            verdict[(ram != UNKNOWN) & (ram < shape.ram)] = Filter.NODE_RAM
        if shape.cpu:
            verdict[(cpu != UNKNOWN) & (cpu < shape.cpu)] = Filter.NODE_CPU
        verdict[core < shape.core] = Filter.GPU_CORE
        verdict[memory < shape.memory] = Filter.GPU_MEMORY
        if not shape.models.all():
            verdict[shape.models[board.model[nodes]] == 0] = Filter.GPU_MODEL
        if not shape.nodes.all():
            verdict[shape.nodes[nodes] == 0] = Filter.NODE_SELECTOR
        verdict[board.alive[nodes] == 0] = Filter.NODE_UNAVAILABLE
        verdict[~self._there[nodes]] = NOWHERE
        return verdict

    def _scores(self, shape: Shape, nodes: npt.NDArray[np.integer], fits: Bools) -> tuple[Int64, Int32]:
        """The nodes' scores, and where one GPU is asked for its place."""
        score = np.full(len(nodes), NO_FIT, np.int64)
        place = np.zeros(len(nodes), np.int32)
        able = np.flatnonzero(fits.sum(1) >= max(shape.count, 1))
        if len(able):
            score[able], chosen = self._evaluate(shape, nodes[able], fits[able])
            if shape.count == 1:
                place[able] = chosen.argmax(1)
        return score, place

    def _chosen(self, shape: Shape, node: int, fits: Bools, draw: int) -> tuple[int, ...]:
        if self._policy == "random":
            free = np.flatnonzero(fits[0])
            start = draw // 1_000_003 % len(free)
            return tuple(sorted(np.roll(free, -start)[: shape.count].tolist()))
        return tuple(np.flatnonzero(self._evaluate(shape, np.array([node]), fits)[1][0]).tolist())

    def _evaluate(self, shape: Shape, nodes: npt.NDArray[np.integer], fits: Bools) -> tuple[Int64, Bools]:
        """Scores of nodes that can carry the shape, and the GPUs chosen there."""
        part = shape.count == 1 and shape.core < self.board.whole
        match self._policy:
            case "random":
                return np.zeros(len(nodes), np.int64), fits
            case "fgd" | "gpucloud" if part:
                return self._sums.best_single(shape, nodes, fits, self._policy)
            case "fgd":
                chosen = fits & (fits.cumsum(1) <= shape.count)
                return self._sums.descent(shape, nodes, chosen, self._policy), chosen
            case "gpucloud":
                chosen = self._by_links(shape, nodes, fits)[1] if shape.count else np.zeros_like(fits)
                return self._sums.descent(shape, nodes, chosen, self._policy), chosen
            case "topology" if shape.count and not part:
                cost, chosen = self._by_links(shape, nodes, fits)
                return -(cost * BEFORE + self._sums.left(nodes)[0].sum(1)), chosen
        return self._packed(shape, nodes, fits)

    def _packed(self, shape: Shape, nodes: npt.NDArray[np.integer], fits: Bools) -> tuple[Int64, Bools]:
        core, memory, _ = self._sums.left(nodes)
        fullness = core * BEFORE + memory
        order = np.where(fits, -fullness if self._policy == "spread" else fullness, np.iinfo(np.int64).max)
        chosen = np.zeros_like(fits)
        first = order.argsort(1, kind="stable")[:, : shape.count]
        np.put_along_axis(chosen, first, values=True, axis=1)
        if self._policy == "spread":
            return ((core * chosen).sum(1) << 20) + core.sum(1), chosen
        if self._policy == "gpu-admission":
            return -(core.sum(1) * BEFORE + memory.sum(1)), chosen
        return -(fullness * chosen).sum(1), chosen

    def _by_links(self, shape: Shape, nodes: npt.NDArray[np.integer], fits: Bools) -> tuple[Int64, Bools]:
        cost, chosen = np.zeros(len(nodes), np.int64), np.zeros_like(fits)
        for at, node in enumerate(nodes.tolist()):
            near = self.board.nodes[node].near
            free = tuple(np.flatnonzero(fits[at]).tolist())
            if shape.count > 1:
                cost[at], places = topology.nearest(free, shape.count, near)
            else:
                cost[at], place = topology.least_broken(free, near)
                places = (place,)
            chosen[at, list(places)] = True
        return cost, chosen


def _counted(verdicts: Int64) -> Int64:
    """How many GPUs of each node each filter removes: (nodes, filters)."""
    rows = np.arange(len(verdicts))[:, None] * (FILTERS + 1) + verdicts
    counts = np.bincount(rows.ravel(), minlength=len(verdicts) * (FILTERS + 1))
    return counts.reshape(len(verdicts), FILTERS + 1)[:, :FILTERS]
