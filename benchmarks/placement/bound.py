"""No scheduler can give out more: a linear program over patterns of a GPU.

A *pattern* is what one GPU can carry at once. Of each model so many GPUs choose patterns, in fractions too; a request
may be served in part, anywhere its models allow. Kept are the GPUs and the CPU of each model, and that a node of so
many GPUs carries only so many requests for several. RAM, and requests for CPU alone, are left out. Whoever places
whole requests on real nodes, in whatever order and knowing whatever comes, is a point of this program: its optimum is a
bound.

Patterns are found as they are needed: the prices of the last solution say, by a knapsack, which one would gain most.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array

from benchmarks.placement.trace import WHOLE, Ask, Machine

# A pattern that gains less than this of a GPU, for each GPU that takes it, is not worth another turn.
LITTLE = 1e-7
# Requests that arrive within one percent are looked at in so many steps.
STEPS = 4

# Parts of a GPU by size, in thousandths, and how many of each.
Pattern = tuple[tuple[int, int], ...]


class Type(NamedTuple):
    """Requests alike, as far as the bound goes."""

    gpus: int
    milli: int
    cpu_milli: int
    models: str


class Bound:
    """The bound of one cluster; patterns found for one question serve the next."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        self.machines = machines
        self.models = sorted({machine.model for machine in machines})
        self.gpus = {model: sum(one.gpus for one in machines if one.model == model) for model in self.models}
        self._patterns: dict[str, list[Pattern]] = {model: [] for model in self.models}

    def percent(self, asks: Iterable[Ask]) -> float:
        """Of all GPUs, the most that can be given to requests of these."""
        counts = Counter(Type(ask.gpus, ask.gpu_milli, ask.cpu_milli, ask.models) for ask in asks if ask.gpus)
        sizes = sorted({kind.milli for kind in counts})
        for patterns in self._patterns.values():
            known = {size for pattern in patterns for size, _ in pattern}
            patterns += [((size, WHOLE // size),) for size in sizes if size not in known]
        while True:
            optimum, prices = self._solved(counts, sizes)
            better = False
            for model, patterns in self._patterns.items():
                gain, pattern = _dearest(sizes, prices[model])
                if gain > prices[model][0] + LITTLE:
                    patterns.append(pattern)
                    better = True
            if not better:
                return 100 * optimum / sum(self.gpus.values())

    def by_arrived(self, arriving: Sequence[Ask], wanted: Sequence[int]) -> dict[int, float]:
        """By percent of all GPUs asked for, as runs.allocated() counts: a bound of the mean over those arrivals."""
        everything, asked = sum(self.gpus.values()) * WHOLE, 0
        at: dict[int, list[int]] = {}
        for number, ask in enumerate(arriving, start=1):
            asked += ask.milli
            at.setdefault(round(100 * asked / everything), []).append(number)
        found = {}
        for arrived in wanted:
            # More arrivals never mean less: each step is bounded by its last arrival.
            numbers = at.get(arrived, [])
            steps = [part for part in np.array_split(numbers, STEPS) if len(part)]
            if steps:
                bounds = [len(part) * self.percent(arriving[: int(part[-1])]) for part in steps]
                found[arrived] = sum(bounds) / len(numbers)
        return found

    def _solved(self, counts: Counter[Type], sizes: Sequence[int]) -> tuple[float, dict[str, dict[int, float]]]:
        """GPUs that are given out; by model what a GPU (0) and a part of each size are worth."""
        program = _Program()
        for model in self.models:
            for kind in counts:
                if not kind.models or model in kind.models.split("|"):
                    program.column(-kind.gpus * kind.milli / WHOLE, self._used(model, kind))
            for pattern in self._patterns[model]:
                carried: dict[object, float] = {(model, "size", size): -n for size, n in pattern if size in sizes}
                program.column(0.0, {(model, "gpus"): 1, **carried})
        limits: dict[object, float] = dict(counts.items())
        for model in self.models:
            of_it = [machine for machine in self.machines if machine.model == model]
            limits[model, "gpus"] = self.gpus[model]
            limits[model, "cpu"] = sum(machine.cpu_milli for machine in of_it)
            for several in {kind.gpus for kind in counts}:
                limits[model, "several", several] = sum(machine.gpus // several for machine in of_it)
        optimum, worth = program.solved(limits)
        prices = {
            model: {
                0: worth.get((model, "gpus"), 0.0),
                **{size: worth.get((model, "size", size), 0.0) for size in sizes},
            }
            for model in self.models
        }
        return -optimum, prices

    def _used(self, model: str, kind: Type) -> dict[object, float]:
        """What one such request takes of the model's nodes."""
        taken: dict[object, float] = {kind: 1, (model, "size", kind.milli): kind.gpus, (model, "cpu"): kind.cpu_milli}
        return taken | ({(model, "several", kind.gpus): 1} if kind.gpus > 1 else {})


@dataclass
class _Program:
    """Columns by rows that have names; each row is at most its limit, 0 where none is said."""

    costs: list[float] = field(default_factory=list)
    rows: dict[object, int] = field(default_factory=dict)
    cells: list[tuple[float, int, int]] = field(default_factory=list)

    def column(self, cost: float, cells: dict[object, float]) -> None:
        """One more unknown, 0 or more."""
        for name, value in cells.items():
            self.cells.append((value, self.rows.setdefault(name, len(self.rows)), len(self.costs)))
        self.costs.append(cost)

    def solved(self, limits: dict[object, float]) -> tuple[float, dict[object, float]]:
        """The least cost, and by row what one more of its limit would save."""
        values, rows, columns = zip(*self.cells, strict=True)
        shape = len(self.rows), len(self.costs)
        matrix = csr_array((np.array(values, float), (rows, columns)), shape=shape)
        most = [limits.get(name, 0.0) for name in self.rows]
        result = linprog(self.costs, A_ub=matrix, b_ub=most, method="highs")
        if result.status:
            raise RuntimeError(f"The linear program was not solved: {result.message}")
        saved = dict(zip(self.rows, -result.ineqlin.marginals, strict=True))
        return float(result.fun), saved


def _dearest(sizes: Sequence[int], prices: dict[int, float]) -> tuple[float, Pattern]:
    """The pattern that is worth most at these prices."""
    unit = gcd(WHOLE, *sizes)
    best: list[tuple[float, Pattern]] = [(0.0, ())]
    for room in range(1, WHOLE // unit + 1):
        value, pattern = best[room - 1]
        for size in sizes:
            if size <= room * unit and prices[size] > 0:
                before, others = best[room - size // unit]
                if before + prices[size] > value + LITTLE / 10:
                    value, pattern = before + prices[size], (*others, (size, 1))
        best.append((value, pattern))
    value, pattern = best[-1]
    return value, tuple(Counter(size for size, _ in pattern).items())
