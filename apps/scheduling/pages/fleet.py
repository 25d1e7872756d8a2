"""The fleet as the overview draws it: one cell per GPU, and sums."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Final, NamedTuple

from apps.nodes.models import Gpu, Node
from apps.nodes.models.gpu import WHOLE
from apps.quotas.principals import Principal
from apps.scheduling.pages.measured import NOTHING, Use, use_of_gpus

# Nodes that fit on a screen or two with a number at each GPU.
MOST_LARGE: Final = 12


class Device(NamedTuple):
    """What is read of a GPU; in their hundreds, whole models would take longer to make than to draw."""

    pk: int
    node_id: int
    uuid: str
    index: int  # type: ignore[assignment] # not where a value stands in it
    model: str
    memory_mib: int
    present: bool
    unhealthy: str
    core_used: int
    memory_used_mib: int
    core_outside: int
    memory_outside_mib: int

    @property
    def core_free(self) -> int:
        """As of the model."""
        return max(0, WHOLE - self.core_used - self.core_outside)

    @property
    def memory_free_mib(self) -> int:
        """As of the model."""
        return max(0, self.memory_mib - self.memory_used_mib - self.memory_outside_mib)


class Cell(NamedTuple):
    """One GPU: how much is promised of it, how much is used. Percent; None where nothing is measured."""

    gpu: Device
    use: Use

    @property
    def leased(self) -> int:
        """Of core."""
        return self.gpu.core_used

    @property
    def used(self) -> float | None:
        """Of core; never drawn past the cell's top."""
        return None if self.use.core_percent is None else min(100.0, self.use.core_percent)


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the GPUs that are there. Means are None where nothing is measured."""

    gpus: int
    gpus_ready: int
    core_leased_percent: float
    core_used_percent: float | None
    memory_leased_mib: int
    memory_used_mib: float | None
    memory_mib: int

    @property
    def memory_leased_percent(self) -> float:
        """Of all memory."""
        return 100 * self.memory_leased_mib / self.memory_mib if self.memory_mib else 0.0


@dataclass(frozen=True, slots=True)
class Strip:
    """A node's GPUs side by side, ten units each, as paths: of a large fleet a shape for each would be too many."""

    cells: list[Cell]

    @property
    def width(self) -> int:
        """In units; the height is ten."""
        return 10 * len(self.cells)

    @property
    def ground(self) -> str:
        """All of each GPU."""
        return self._path(9, [100] * len(self.cells))

    @property
    def leased(self) -> str:
        """What is promised of each."""
        return self._path(9, [cell.leased for cell in self.cells])

    @property
    def used(self) -> str:
        """What is used of each, where it is known."""
        return self._path(5, [cell.used or 0 for cell in self.cells])

    @property
    def core_leased(self) -> float | None:
        """Mean of its GPUs, percent; None without GPUs."""
        return mean([cell.leased for cell in self.cells])

    @property
    def core_used(self) -> float | None:
        """Mean of those that are measured, percent."""
        return mean([cell.used for cell in self.cells if cell.used is not None])

    @staticmethod
    def _path(width: int, heights: list[int] | list[float]) -> str:
        left = (9 - width) / 2
        return "".join(
            f"M{10 * at + left:g} 10h{width}v-{height / 10:.1f}h-{width}z"
            for at, height in enumerate(heights)
            if height
        )


@dataclass(frozen=True, slots=True)
class Fleet:
    """Nodes with their cells."""

    nodes: list[tuple[Node, list[Cell]]]
    totals: Totals

    @property
    def strips(self) -> list[tuple[Node, Strip]] | None:
        """The same drawn small, where the nodes are too many to be drawn large."""
        return [(node, Strip(cells)) for node, cells in self.nodes] if len(self.nodes) > MOST_LARGE else None


def mean(values: list[int] | list[float]) -> float | None:
    """None of nothing."""
    return sum(values) / len(values) if values else None


def read_fleet_map(principal: Principal) -> Fleet:
    """Three queries, whatever the size. Operators only."""
    principal.require_operator()
    devices = list(map(Device._make, Gpu.objects.values_list(*Device._fields)))
    use = use_of_gpus(devices)
    cells: dict[int, list[Cell]] = defaultdict(list)
    for device in devices:
        cells[device.node_id].append(Cell(device, use.get(device.uuid, NOTHING)))
    rows = [(node, cells[node.pk]) for node in Node.objects.select_related("pool")]
    return Fleet(rows, _totals(rows))


def _totals(rows: list[tuple[Node, list[Cell]]]) -> Totals:
    cells = [cell for _, row in rows for cell in row if cell.gpu.present]
    core = [cell.use.core_percent for cell in cells if cell.use.core_percent is not None]
    memory = [cell.use.memory_mib for cell in cells if cell.use.memory_mib is not None]
    return Totals(
        gpus=len(cells),
        gpus_ready=sum(
            cell.gpu.present and not cell.gpu.unhealthy for node, row in rows if node.state == "ready" for cell in row
        ),
        core_leased_percent=sum(cell.leased for cell in cells) / len(cells) if cells else 0.0,
        core_used_percent=sum(core) / len(core) if core else None,
        memory_leased_mib=sum(cell.gpu.memory_used_mib for cell in cells),
        memory_used_mib=sum(memory) if memory else None,
        memory_mib=sum(cell.gpu.memory_mib for cell in cells),
    )
