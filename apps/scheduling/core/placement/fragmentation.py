"""How much of a node's idle GPU the typical requests cannot use (Weng et al., USENIX ATC 2023), and what that is worth.

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
# The score's steps: 50 to a GPU. Its terms, in fiftieths: the fall of fragmentation 50, the price 10, what is left 1.
STEPS, PRICE, LEFT = 50, 10, 1
CPU_MILLI_OF_A_LARGE_NODE, GPUS_OF_A_LARGE_NODE = 128_000, 8


@dataclass(frozen=True, slots=True)
class Left:
    """What is free of a node: CPU (None: not limited), and core, MiB and model of each GPU."""

    cpu_milli: int | None
    gpus: tuple[tuple[int, int, str], ...]

    @property
    def idle(self) -> int:
        """Core free on all its GPUs."""
        return sum(core for core, _, _ in self.gpus)

    def after(self, chosen: Sequence[int], request: Request) -> "Left":
        """The node with the request on these GPUs."""
        cpu = None if self.cpu_milli is None else self.cpu_milli - request.cpu_milli
        gpus = tuple(
            (core - request.core_request, memory - request.memory_mib, model)
            if place in chosen
            else (core, memory, model)
            for place, (core, memory, model) in enumerate(self.gpus)
        )
        return Left(cpu, gpus)


def fragmentation(left: Left, weights: Weights) -> int:
    """Idle core that the mix cannot use, times Q."""
    return sum(weight * (left.idle - usable(left, kind)) for kind, weight in weights)


def usable(left: Left, kind: Type) -> int:
    """Idle core on the GPUs that could carry the type; none where the node could not."""
    fits = [
        core
        for core, memory, model in left.gpus
        if core >= kind.core and memory >= kind.memory_mib and (not kind.models or model in kind.models)
    ]
    enough_cpu = left.cpu_milli is None or left.cpu_milli >= kind.cpu_milli
    return sum(fits) if kind.gpu_count and enough_cpu and len(fits) >= kind.gpu_count else 0


@dataclass(frozen=True)
class Prices:
    """What scores know of the pool: the mix, what each model costs, and the claim's own number to draw by."""

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
        """The least fall of fragmentation, times Q, at which floor(100 · sigmoid(fall)) is 1, 2, … 99."""
        return tuple(math.ceil(math.log(bucket / (100 - bucket)) * self.whole * self.total) for bucket in range(1, 100))

    def bucket(self, fall: int) -> int:
        """floor(100 · sigmoid(fall in GPUs))."""
        return bisect_right(self.buckets, fall)

    def of(self, model: str) -> int:
        """The price of a model."""
        return self.models.get(model, 0)

    def step(self, fall: int, charged: int, left: Left) -> int:
        """The score of `gpucloud`; `charged` is price · core of the GPUs taken."""
        cpu = (left.cpu_milli or 0) * self.whole * self.total // CPU_MILLI_OF_A_LARGE_NODE
        idle = left.idle * self.total // GPUS_OF_A_LARGE_NODE
        worth = STEPS * fall - PRICE * charged * self.total // PRICE_UNIT - LEFT * (cpu + idle)
        return worth // (self.whole * self.total)


def model_prices(weights: Weights, gpus: Mapping[str, int]) -> dict[str, int]:
    """What insists on each model, as its part of all demand over its part of all GPUs, in thousandths.

    Demand for any of several models counts for each of them by their GPUs.
    """
    pinned = dict.fromkeys(gpus, 0)
    demand = 0
    for kind, weight in weights:
        asked = weight * kind.gpu_count * kind.core
        demand += asked
        there = sum(gpus.get(model, 0) for model in kind.models)
        for model in set(kind.models) & gpus.keys():
            pinned[model] += asked * gpus[model] // there
    everything = sum(gpus.values())
    return {
        model: PRICE_UNIT * pinned[model] * everything // (demand * count) if demand and count else 0
        for model, count in gpus.items()
    }
