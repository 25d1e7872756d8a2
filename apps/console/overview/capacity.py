"""The largest free shares of one GPU, by model."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from apps.nodes.models.gpu import WHOLE
from apps.nodes.services.gpu_rows import GpuRow


@dataclass(frozen=True, slots=True)
class Room:
    """The free shares of GPUs of one model: pairs of core and MiB, the most core first."""

    model: str
    gpus: int
    whole: int
    fits: list[tuple[int, int]]


def room_of(free: Iterable[tuple[GpuRow, int]]) -> list[Room]:
    """Return by model, for GPUs that take claims, the shares that no other share exceeds in both core and memory.

    `free`: GPUs, and how many are equal to each.
    """
    found: dict[str, list[tuple[GpuRow, int]]] = defaultdict(list)
    for gpu, number in free:
        found[gpu.model].append((gpu, number))
    return [_room(model, gpus) for model, gpus in found.items()]


def _room(model: str, gpus: list[tuple[GpuRow, int]]) -> Room:
    free = [((gpu.core_free, gpu.memory_free_mib), gpu, number) for gpu, number in gpus]
    whole = sum(number for share, gpu, number in free if share == (WHOLE, gpu.memory_mib))
    return Room(model, sum(number for _, number in gpus), whole, _largest(share for share, _, _ in free))


def _largest(free: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    best: list[tuple[int, int]] = []
    for core, memory in sorted(set(free), reverse=True):
        # More memory than any share with more core; a share has some of both.
        if core and memory > (best[-1][1] if best else 0):
            best.append((core, memory))
    return best
