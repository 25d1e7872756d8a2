"""Prices of models: how much of the demand can only be carried by each.

A request insists on the models that it names, and on those of machines that could carry it at all: eight GPUs with 120
CPUs are found on few. The price of a model is the part of the demand that insists on it, over its part of all idle
GPUs: at one, it will be gone when the others are.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from apps.scheduling.core.placement.fragmentation import DEAREST, PRICE_UNIT
from apps.scheduling.core.placement.mix import Type, Weights

# Rounds after which demand for several models has settled.
ROUNDS = 20


class Machine(NamedTuple):
    """A kind of node: a model, the number of its GPUs, and all its CPU (None: not known)."""

    model: str
    gpus: int
    cpu_milli: int | None


def model_prices(weights: Weights, idle: Mapping[str, int], machines: Collection[Machine]) -> dict[str, int]:
    """Return the prices by model, in thousandths. `idle` is the free core of each model, over all nodes."""
    everywhere = frozenset(idle)
    insisting: dict[frozenset[str], int] = {}
    demand = 0
    for kind, weight in weights:
        asked = weight * kind.gpu_count * kind.core
        demand += asked
        models = _models(kind, machines) & everywhere
        if models and models != everywhere:
            insisting[models] = insisting.get(models, 0) + asked
    prices = dict.fromkeys(sorted(idle), 0.0)
    if demand and insisting:
        prices = _settle([(sorted(models), asked / demand) for models, asked in insisting.items()], idle)
    return {model: int(min(price, DEAREST) * PRICE_UNIT) for model, price in prices.items()}


def _models(kind: Type, machines: Collection[Machine]) -> frozenset[str]:
    return frozenset(
        machine.model
        for machine in machines
        if machine.gpus >= kind.gpu_count
        and (machine.cpu_milli is None or machine.cpu_milli >= kind.cpu_milli)
        and (not kind.models or machine.model in kind.models)
    )


def _settle(demands: Sequence[tuple[list[str], float]], idle: Mapping[str, int]) -> dict[str, float]:
    """Return prices after moving demand for several models to the less asked of them, until they are asked alike."""
    everything = sum(idle.values())
    parts = [_normal({model: float(idle[model]) for model in models}) for models, _ in demands]
    prices: dict[str, float] = {}
    for _ in range(ROUNDS):
        prices = dict.fromkeys(sorted(idle), 0.0)
        for (models, share), part in zip(demands, parts, strict=True):
            for model in models:
                prices[model] += share * part[model]
        prices = {model: asked * everything / idle[model] if idle[model] else 0.0 for model, asked in prices.items()}
        # A little is added, so that a model that nobody asks for is not infinitely cheap.
        parts = [
            _normal({model: part[model] / math.sqrt(prices[model] + 0.001) for model in models})
            for (models, _), part in zip(demands, parts, strict=True)
        ]
    return prices


def _normal(part: dict[str, float]) -> dict[str, float]:
    everything = sum(part.values())
    return {model: amount / everything if everything else 0.0 for model, amount in part.items()}
