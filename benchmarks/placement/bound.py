"""Upper bound of any scheduler: a linear program over patterns of a GPU.

A *pattern* is a set of requests that one GPU can carry at once. For each model, a (fractional) number of GPUs chooses
each pattern; a request may be served in part, on any of its models. The constraints are the GPUs and the CPU of each
model, and that a node of so many GPUs carries only so many requests for several. RAM, and requests for CPU only, are
left out. Any placement of whole requests on real nodes, in any order and with any foresight, is a point of this
program: its optimum is a bound.

Patterns are generated as needed: the prices of the last solution give, by a knapsack, the one with the largest gain.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import NamedTuple

import numpy as np

from benchmarks.placement.trace import WHOLE, Ask, Machine

# A pattern that gains less than this of a GPU, for each GPU that takes it, ends the iteration.
LITTLE = 1e-7
# Steps at which requests that arrive within one percent are evaluated.
STEPS = 4

# Parts of a GPU by size, in thousandths, and how many of each.
Pattern = tuple[tuple[int, int], ...]


class Type(NamedTuple):
    """Requests that are equal for the bound."""

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
        """Return the largest share of all GPUs that these requests can get, in percent."""
        counts = Counter(Type(ask.gpus, ask.gpu_milli, ask.cpu_milli, ask.models) for ask in asks if ask.gpus)
        sizes = sorted({kind.milli for kind in counts})
        for patterns in self._patterns.values():
            known = {size for pattern in patterns for size, _ in pattern}
            patterns += [((size, WHOLE // size),) for size in sizes if size not in known]
        while True:
            optimum, prices = self._solve(counts, sizes)
            better = False
            for model, patterns in self._patterns.items():
                gain, pattern = _best_pattern(sizes, prices[model])
                if gain > prices[model][0] + LITTLE:
                    patterns.append(pattern)
                    better = True
            if not better:
                return 100 * optimum / sum(self.gpus.values())

    def by_arrived(self, arriving: Sequence[Ask], wanted: Sequence[int]) -> dict[int, float]:
        """Return the bound by percent of all GPUs requested, as runs.allocated() counts.

        It bounds the mean over the arrivals of a percent.
        """
        everything, asked = sum(self.gpus.values()) * WHOLE, 0
        at: dict[int, list[int]] = {}
        for number, ask in enumerate(arriving, start=1):
            asked += ask.milli
            at.setdefault(round(100 * asked / everything), []).append(number)
        found = {}
        for arrived in wanted:
            # The bound grows with arrivals: each step is bounded by its last arrival.
            numbers = at.get(arrived, [])
            steps = [part for part in np.array_split(numbers, STEPS) if len(part)]
            if steps:
                bounds = [len(part) * self.percent(arriving[: int(part[-1])]) for part in steps]
                found[arrived] = sum(bounds) / len(numbers)
        return found

    def _solve(self, counts: Counter[Type], sizes: Sequence[int]) -> tuple[float, dict[str, dict[int, float]]]:
        """Return the allocated GPUs; by model the value of a GPU (0) and of a part of each size."""
        program = _Program()
        for model in self.models:
            for kind in counts:
                if not kind.models or model in kind.models.split("|"):
                    program.column(-kind.gpus * kind.milli / WHOLE, self._resources(model, kind))
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
        optimum, worth = program.solve(limits)
        prices = {
            model: {
                0: worth.get((model, "gpus"), 0.0),
                **{size: worth.get((model, "size", size), 0.0) for size in sizes},
            }
            for model in self.models
        }
        return -optimum, prices

    def _resources(self, model: str, kind: Type) -> dict[object, float]:
        """Return the resources that one such request takes of the model's nodes."""
        taken: dict[object, float] = {kind: 1, (model, "size", kind.milli): kind.gpus, (model, "cpu"): kind.cpu_milli}
        return taken | ({(model, "several", kind.gpus): 1} if kind.gpus > 1 else {})


@dataclass
class _Program:
    """Columns by named rows; each row is at most its limit, 0 if none is given."""

    costs: list[float] = field(default_factory=list)
    rows: dict[object, int] = field(default_factory=dict)
    cells: list[tuple[float, int, int]] = field(default_factory=list)

    def column(self, cost: float, cells: dict[object, float]) -> None:
        """Add an unknown that is 0 or more."""
        for name, value in cells.items():
            self.cells.append((value, self.rows.setdefault(name, len(self.rows)), len(self.costs)))
        self.costs.append(cost)

    def solve(self, limits: dict[object, float]) -> tuple[float, dict[object, float]]:
        """Return the least cost, and by row the saving of one more of its limit."""
        # A second of imports, which a placement without a bound does not need.
        from scipy.optimize import linprog  # noqa: PLC0415
        from scipy.sparse import csr_array  # noqa: PLC0415

        values, rows, columns = zip(*self.cells, strict=True)
        shape = len(self.rows), len(self.costs)
        matrix = csr_array((np.array(values, float), (rows, columns)), shape=shape)
        most = [limits.get(name, 0.0) for name in self.rows]
        result = linprog(self.costs, A_ub=matrix, b_ub=most, method="highs")
        if result.status:
            raise RuntimeError(f"The linear program was not solved: {result.message}")
        saved = dict(zip(self.rows, -result.ineqlin.marginals, strict=True))
        return float(result.fun), saved


def _best_pattern(sizes: Sequence[int], prices: dict[int, float]) -> tuple[float, Pattern]:
    """Return the most valuable pattern at these prices."""
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
