"""The largest shares of one GPU that still fit, by model."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from apps.nodes.models import Node
from apps.nodes.models.gpu import WHOLE
from apps.scheduling.pages.fleet import Cell, Device


@dataclass(frozen=True, slots=True)
class Room:
    """What a claim for one GPU of this model can still get: pairs of core and MiB, the most core first."""

    model: str
    gpus: int
    whole: int
    fits: list[tuple[int, int]]


def room_of(nodes: Iterable[tuple[Node, list[Cell]]]) -> list[Room]:
    """By model, on the GPUs that take new claims: the shares of which no other fits with more of both."""
    found: dict[str, list[Device]] = defaultdict(list)
    for node, cells in nodes:
        ready = node.state == "ready"
        for gpu in (cell.gpu for cell in cells if cell.gpu.present):
            found[gpu.model] += [gpu] if ready and not gpu.unhealthy else []
    return [Room(model, len(gpus), sum(map(_whole, gpus)), _largest(gpus)) for model, gpus in found.items()]


def _whole(gpu: Device) -> bool:
    return gpu.core_free == WHOLE and gpu.memory_free_mib == gpu.memory_mib


def _largest(gpus: list[Device]) -> list[tuple[int, int]]:
    best: list[tuple[int, int]] = []
    for core, memory in sorted({(gpu.core_free, gpu.memory_free_mib) for gpu in gpus}, reverse=True):
        # More memory than what has more core; a share has some of both.
        if core and memory > (best[-1][1] if best else 0):
            best.append((core, memory))
    return best
