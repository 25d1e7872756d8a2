"""Segmented bars of a GPU: the share of each assignment."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from apps.console.shell.measurements import NOTHING, Use
from apps.nodes.models import Gpu
from apps.scheduling.models import Assignment

# Neighbours differ; after the last colour the first comes again.
COLOURS: Final = 6


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment from `start`, `width` wide, in percent of the bar; `used` is the part in use now."""

    start: float
    width: float
    colour: int
    used: float
    assignment: Assignment

    @property
    def end(self) -> float:
        """The end in percent of the bar."""
        return self.start + self.width


@dataclass(frozen=True, slots=True)
class GpuBars:
    """The bars of one GPU on a node's page."""

    gpu: Gpu
    use: Use
    core: list[Segment]
    memory: list[Segment]
    assignments: list[tuple[int, Assignment, Use]]


def bars_of(
    gpu: Gpu, *, assignments: Iterable[Assignment], use: Mapping[str, Use], shares: Mapping[Any, Use]
) -> GpuBars:
    """Return the GPU with a segment per assignment, oldest first."""
    mine = [
        (number % COLOURS, item, shares.get(item.uid, NOTHING))
        for number, item in enumerate(item for item in assignments if item.gpu_id == gpu.pk)
    ]
    core = _segments(mine, whole=100, held="held_core", used="core_percent")
    memory = _segments(mine, whole=gpu.memory_mib, held="held_memory_mib", used="memory_mib")
    return GpuBars(gpu, use.get(gpu.uuid, NOTHING), core, memory, mine)


def _segments(mine: list[tuple[int, Assignment, Use]], *, whole: int, held: str, used: str) -> list[Segment]:
    segments, start = [], 0.0
    for colour, item, share in mine:
        width = 100 * getattr(item, held) / whole
        in_use = min(width, 100 * (getattr(share, used) or 0) / whole)
        segments.append(Segment(start, width, colour, in_use, item))
        start += width
    return segments
