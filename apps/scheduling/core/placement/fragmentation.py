"""Fragmentation: the idle GPU of a node that typical requests cannot use (Weng et al., USENIX ATC 2023), and scores.

For one type of request: a node that can carry it wastes those of its GPUs that cannot; a node that cannot wastes all of
its idle GPU. The fragmentation is the mean over the mix, here times the mix's total weight Q: an integer, in core · Q.
Every number that decides is an integer, so that all back ends agree to the last bit.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from apps.scheduling.core.placement.mix import Type, Weights
from apps.scheduling.core.values import Request

# Prices are in thousandths of a GPU per GPU.
PRICE_UNIT = 1000
# The highest price: far beyond the point where it outweighs all else that decides.
DEAREST = 4
# A score in steps: a GPU's fall of fragmentation 25, a GPU at price one 10, 128 CPUs or 16 GPUs left 1, and a whole
# GPU's worth of imbalance 3. Decision 0019 says how they were found.
STEPS, PRICE, CPU_MILLI_LEFT, GPUS_LEFT, IMBALANCE = 25, 10, 128_000, 16, 3
# Watts more that count as much as a step; decision 0108 says how they were found.
WATTS = 20
# Shares of a node are counted in this many parts.
PARTS = 1024


@dataclass(frozen=True, slots=True)
class Left:
    """The free room of a node: CPU (None: not limited), core, MiB and model of each GPU; and all CPU, if known."""

    cpu_milli: int | None
    gpus: tuple[tuple[int, int, str], ...]
    all_cpu_milli: int | None = None

    @property
    def idle(self) -> int:
        """The free core of all its GPUs."""
        return sum(core for core, _, _ in self.gpus)

    def after(self, chosen: Sequence[int], request: Request) -> "Left":
        """Return the node with the request on these GPUs."""
        cpu = None if self.cpu_milli is None else self.cpu_milli - request.cpu_milli
        gpus = tuple(
            (core - request.core_request, memory - request.memory_mib, model)
            if place in chosen
            else (core, memory, model)
            for place, (core, memory, model) in enumerate(self.gpus)
        )
        return Left(cpu, gpus, self.all_cpu_milli)

    def imbalance(self, whole: int) -> int:
        """Return the number of GPUs times the squared difference between the free shares of core and of CPU, in PARTS².

        If they differ, one will be left over when the other is gone.
        """
        if self.cpu_milli is None or not self.all_cpu_milli:
            return 0
        everything = len(self.gpus) * whole
        core = min(self.idle, everything) * PARTS // everything
        cpu = min(max(self.cpu_milli, 0), self.all_cpu_milli) * PARTS // self.all_cpu_milli
        return len(self.gpus) * (core - cpu) ** 2


def fragmentation(left: Left, weights: Weights) -> int:
    """Return the idle core that the mix cannot use, times Q."""
    # An empty mix counts as one request that fits nowhere.
    total = sum(weight for _, weight in weights) or 1
    return left.idle * total - sum(weight * usable(left, kind) for kind, weight in weights)


def usable(left: Left, kind: Type) -> int:
    """Return the idle core on the GPUs that could carry the type; none if the node could not."""
    fits = [
        core
        for core, memory, model in left.gpus
        if core >= kind.core and memory >= kind.memory_mib and (not kind.models or model in kind.models)
    ]
    enough_cpu = left.cpu_milli is None or left.cpu_milli >= kind.cpu_milli
    return sum(fits) if kind.gpu_count and enough_cpu and len(fits) >= kind.gpu_count else 0


@dataclass(frozen=True)
class Prices:
    """The facts about the pool that scores use: the mix, the price of each model, and the claim's number to draw by."""

    weights: Weights
    models: Mapping[str, int]
    whole: int
    draw: int = 0

    @cached_property
    def total(self) -> int:
        """Q: the weight of the whole mix; at least 1."""
        return sum(weight for _, weight in self.weights) or 1

    @cached_property
    def buckets(self) -> tuple[int, ...]:
        """The least falls of fragmentation, times Q, at which floor(100 · sigmoid(fall)) is 1, 2, … 99."""
        return tuple(math.ceil(math.log(bucket / (100 - bucket)) * self.whole * self.total) for bucket in range(1, 100))

    def bucket(self, fall: int) -> int:
        """Return floor(100 · sigmoid(fall in GPUs))."""
        return bisect_right(self.buckets, fall)

    def of(self, model: str) -> int:
        """Return the price of a model."""
        return self.models.get(model, 0)

    def step(self, fall: int, charged: int, before: Left, after: Left, *, watts: int = 0) -> int:
        """Return the score of `gpucloud`; of `power` with its watts. `charged` is price · core of the GPUs taken."""
        gpu = self.whole * self.total
        cpu = (after.cpu_milli or 0) * gpu // CPU_MILLI_LEFT
        idle = after.idle * self.total // GPUS_LEFT
        apart = after.imbalance(self.whole) - before.imbalance(self.whole)
        worth = STEPS * fall - PRICE * charged * self.total // PRICE_UNIT - cpu - idle - watts * gpu // WATTS
        return (worth - IMBALANCE * apart * gpu // PARTS**2) // gpu
