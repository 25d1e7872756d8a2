"""The policies in plain Python: the score of a node for a request, and the choice of its GPUs.

Each policy is a function of a node, the places of those of its GPUs that fit, the request, and the facts about the
pool; it returns an integer score and the places chosen. The highest score wins; ties fall to the node's name and, in a
node, to the GPU's index and uuid (a replaced device has the index of the old one), so that a replay agrees. This is the
specification: the fast back ends compute the same integers.
"""

from collections.abc import Callable
from dataclasses import dataclass

from apps.scheduling.core.placement import topology
from apps.scheduling.core.placement.fragmentation import Left, Prices, fragmentation
from apps.scheduling.core.placement.power import cpu_rise, gpu_rise
from apps.scheduling.core.placement.topology import Members, Near
from apps.scheduling.core.values import GpuState, NodeState, Request

# Scores put one number before another: core before memory. A node's free memory stays far below this many MiB.
BEFORE = 1 << 36


@dataclass(frozen=True, slots=True)
class Node:
    """A machine, its GPUs in order, and the distances among them."""

    state: NodeState
    gpus: tuple[GpuState, ...]
    near: Near | None = None

    @property
    def left(self) -> Left:
        """The free room of the node; a GPU that can take nothing has nothing."""
        gpus = tuple(
            (gpu.core_free if gpu.schedulable else 0, gpu.memory_free_mib if gpu.schedulable else 0, gpu.model)
            for gpu in self.gpus
        )
        return Left(self.state.cpu_milli_free, gpus, self.state.cpu_milli)


Choice = tuple[int, Members]
Policy = Callable[[Node, Members, Request, Prices], Choice]


def binpack(node: Node, fitting: Members, request: Request, _prices: Prices) -> Choice:
    """Choose the fullest GPUs that fit, so that large holes stay whole: least core left, then least memory."""
    left = node.left.gpus
    chosen = sorted(fitting, key=lambda place: left[place][:2])[: request.gpu_count]
    return -sum(left[place][0] * BEFORE + left[place][1] for place in chosen), tuple(sorted(chosen))


def spread(node: Node, fitting: Members, request: Request, _prices: Prices) -> Choice:
    """Choose the emptiest GPUs, of the emptiest node: most core left on them, then on the node."""
    left = node.left
    chosen = sorted(fitting, key=lambda place: (-left.gpus[place][0], -left.gpus[place][1]))[: request.gpu_count]
    return (sum(left.gpus[place][0] for place in chosen) << 20) + left.idle, tuple(sorted(chosen))


def gpu_admission(node: Node, fitting: Members, request: Request, prices: Prices) -> Choice:
    """Choose as Tencent's gpu-admission: the node with the least core free, then the least memory; its fullest GPUs."""
    left = node.left
    return -(left.idle * BEFORE + sum(memory for _, memory, _ in left.gpus)), binpack(node, fitting, request, prices)[1]


def near_together(node: Node, fitting: Members, request: Request, prices: Prices) -> Choice:
    """Choose several GPUs as near as can be, one whole GPU where the fewest links break, a part on the fullest GPU.

    Ties go to the fullest node.
    """
    if request.gpu_count == 0 or _is_part(request, prices):
        return binpack(node, fitting, request, prices)
    cost, chosen = _by_links(node, fitting, request)
    return -(cost * BEFORE + node.left.idle), chosen


def any_will_do(_node: Node, fitting: Members, request: Request, prices: Prices) -> Choice:
    """Score every node alike; `plain` draws among the best. The GPUs start at a place drawn by the claim."""
    start = prices.draw // 1_000_003 % len(fitting)
    turned = fitting[start:] + fitting[:start]
    return 0, tuple(sorted(turned[: request.gpu_count]))


def fgd(node: Node, fitting: Members, request: Request, prices: Prices) -> Choice:
    """Choose by fragmentation gradient descent as published: 100 · sigmoid(fall in GPUs), truncated."""
    before = fragmentation(node.left, prices.weights)

    def score(chosen: Members) -> int:
        return prices.bucket(before - fragmentation(node.left.after(chosen, request), prices.weights))

    if _is_part(request, prices):
        return _best_single(fitting, score)
    chosen = fitting[: request.gpu_count]
    return score(chosen), chosen


def gpucloud(node: Node, fitting: Members, request: Request, prices: Prices) -> Choice:
    """Choose by fragmentation gradient descent with coarser steps, prices, balance of CPU and core, and fuller first.

    A model has a price if others insist on it. The score is floor(25 · fall of fragmentation − 10 · price · GPUs − 3 ·
    rise of imbalance − CPUs left / 128 − GPUs left / 16).
    """
    return _descend(node, fitting, request, prices, lambda _: 0)


def power(node: Node, fitting: Members, request: Request, prices: Prices) -> Choice:
    """Choose as `gpucloud`, less one for every 20 watts that the node draws more: by GPUs and packages that it wakes.

    The weighted sum of PWR+FGD (Lettich et al., CCGrid 2025) with fixed watts a step: scaled to the nodes at hand, as
    theirs are, a node's score would depend on the others.
    """
    left = node.left
    cpu = cpu_rise(left.cpu_milli, left.all_cpu_milli, request.cpu_milli)
    wakes = [gpu_rise(model) if core >= prices.whole else 0 for core, _, model in left.gpus]
    return _descend(node, fitting, request, prices, lambda chosen: cpu + sum(wakes[place] for place in chosen))


def _descend(node: Node, fitting: Members, request: Request, prices: Prices, watts: Callable[[Members], int]) -> Choice:
    now = node.left
    before = fragmentation(now, prices.weights)

    def score(chosen: Members) -> int:
        left = now.after(chosen, request)
        fall = before - fragmentation(left, prices.weights)
        charged = sum(prices.of(node.gpus[place].model) * request.core_request for place in chosen)
        return prices.step(fall, charged, now, left, watts=watts(chosen))

    if _is_part(request, prices):
        return _best_single(fitting, score)
    chosen = _by_links(node, fitting, request)[1] if request.gpu_count else ()
    return score(chosen), chosen


def _is_part(request: Request, prices: Prices) -> bool:
    return request.gpu_count == 1 and request.core_request < prices.whole


def _best_single(fitting: Members, score: Callable[[Members], int]) -> Choice:
    best, place = max((score((place,)), -place) for place in fitting)
    return best, (-place,)


def _by_links(node: Node, fitting: Members, request: Request) -> Choice:
    if request.gpu_count > 1:
        return topology.nearest(fitting, request.gpu_count, node.near)
    cost, place = topology.least_broken(fitting, node.near)
    return cost, (place,)


POLICIES: dict[str, Policy] = {
    "gpucloud": gpucloud,
    "fgd": fgd,
    "binpack": binpack,
    "spread": spread,
    "topology": near_together,
    "gpu-admission": gpu_admission,
    "random": any_will_do,
    "power": power,
}
