"""The largest free shares of one GPU, by model."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from apps.console.overview.fleet_map import Cell
from apps.nodes.models import Node
from apps.nodes.models.gpu import WHOLE
from apps.nodes.services.gpu_rows import GpuRow


@dataclass(frozen=True, slots=True)
class Room:
    """The free shares of GPUs of one model: pairs of core and MiB, the most core first."""

    model: str
    gpus: int
    whole: int
    fits: list[tuple[int, int]]


def room_of(nodes: Iterable[tuple[Node, list[Cell]]]) -> list[Room]:
    """Return by model, for schedulable GPUs, the shares that no other share exceeds in both core and memory."""
    found: dict[str, list[GpuRow]] = defaultdict(list)
    for node, cells in nodes:
        ready = node.state == "ready"
        for gpu in (cell.gpu for cell in cells if cell.gpu.present):
            found[gpu.model] += [gpu] if ready and gpu.state == "ready" else []
    return [_room(model, gpus) for model, gpus in found.items()]


def _room(model: str, gpus: list[GpuRow]) -> Room:
    free = [(gpu.core_free, gpu.memory_free_mib) for gpu in gpus]
    whole = sum(share == (WHOLE, gpu.memory_mib) for share, gpu in zip(free, gpus, strict=True))
    return Room(model, len(gpus), whole, _largest(free))


def _largest(free: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    best: list[tuple[int, int]] = []
    for core, memory in sorted(set(free), reverse=True):
        # More memory than any share with more core; a share has some of both.
        if core and memory > (best[-1][1] if best else 0):
            best.append((core, memory))
    return best
