"""The fleet as the overview draws it: one cell per GPU, and sums."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from apps.console.shell.measurements import NOTHING, Use, use_of_gpus
from apps.nodes.models import Gpu, Node
from apps.nodes.services.gpu_rows import GpuRow, gpu_rows
from apps.quotas.principals import Principal
from apps.scheduling.services.reclaiming.draining import attach_progress

# More nodes than these are summed up by pool.
MOST_DRAWN: Final = 200
# The columns read of each node, of which there may be hundreds.
OF_NODE: Final = (
    "name", "pool", "cordoned", "draining_at", "unhealthy", "fenced_at", "fenced_why", "returning_frame", "created_at",
    "last_seen_at", "simulated",
)  # fmt: skip


class Cell(NamedTuple):
    """One GPU: its allocated and used share in percent; None if nothing is measured."""

    gpu: GpuRow
    use: Use

    @property
    def leased(self) -> int:
        """The allocated core."""
        return self.gpu.core_used

    @property
    def used(self) -> float | None:
        """The used core, never above the cell's top."""
        return None if self.use.core_percent is None else min(100.0, self.use.core_percent)


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the present GPUs. Use is None if nothing is measured.

    Allocation and use have one denominator, all present GPUs; those that do not report count as unused, and
    `gpus_silent` says how many they are.
    """

    gpus: int
    gpus_ready: int
    gpus_silent: int
    core_leased_percent: float
    core_used_percent: float | None
    memory_leased_mib: int
    memory_used_mib: float | None
    memory_mib: int

    @property
    def memory_leased_percent(self) -> float:
        """The allocated part of all memory."""
        return 100 * self.memory_leased_mib / self.memory_mib if self.memory_mib else 0.0


@dataclass(frozen=True, slots=True)
class PoolShare:
    """One pool of a large fleet."""

    pool: str
    nodes: int
    totals: Totals


@dataclass(frozen=True, slots=True)
class Fleet:
    """The fleet as the overview shows it.

    `nodes` are those that are drawn, with their cells: all, or of a large fleet some of those with problems.
    `troubled` and `troubled_gpus` have the nodes and GPUs that may need attention, of a large fleet some of each state;
    `free` the GPUs that take claims, with how many are equal. `pools`, and `states` with the number of nodes in each,
    are empty unless the fleet is large.
    """

    nodes: list[tuple[Node, list[Cell]]]
    totals: Totals
    node_count: int
    troubled: list[Node]
    troubled_gpus: list[tuple[Node, GpuRow]]
    free: list[tuple[GpuRow, int]]
    pools: list[PoolShare] = field(default_factory=list)
    states: Mapping[str, int] = field(default_factory=dict)


def read_fleet_map(principal: Principal) -> Fleet:
    """Read the fleet: its sums alone if it has more nodes than `MOST_DRAWN`. Operators only."""
    principal.require_operator()
    number = Node.objects.count()
    if number > MOST_DRAWN:
        from apps.console.overview.large_fleet import read_large_fleet  # noqa: PLC0415 - it uses this module's values

        return read_large_fleet(number)
    return _read_all()


def _read_all() -> Fleet:
    """Read every node and GPU in three queries, and one more while a node drains."""
    rows = gpu_rows(Gpu.objects.all())
    use = use_of_gpus(rows)
    cells: dict[int, list[Cell]] = defaultdict(list)
    for row in rows:
        cells[row.node_id].append(Cell(row, use.get(row.uuid, NOTHING)))
    found = list(Node.objects.only(*OF_NODE).prefetch_related("pool"))
    attach_progress(found)
    nodes = [(node, cells[node.pk]) for node in found]
    gpus = [(node, cell.gpu) for node, row in nodes for cell in row]
    states = {node.pk: node.state for node in found}
    free = [(gpu, 1) for node, gpu in gpus if states[node.pk] == "ready" and gpu.state == "ready"]
    return Fleet(nodes, _totals(nodes), len(nodes), found, gpus, free)


def _totals(rows: list[tuple[Node, list[Cell]]]) -> Totals:
    cells = [cell for _, row in rows for cell in row if cell.gpu.present]
    core = [cell.use.core_percent for cell in cells if cell.use.core_percent is not None]
    memory = [cell.use.memory_mib for cell in cells if cell.use.memory_mib is not None]
    return Totals(
        gpus=len(cells),
        gpus_ready=sum(cell.gpu.state == "ready" for node, row in rows if node.state == "ready" for cell in row),
        gpus_silent=len(cells) - len(core),
        core_leased_percent=sum(cell.leased for cell in cells) / len(cells) if cells else 0.0,
        core_used_percent=sum(core) / len(cells) if core else None,
        memory_leased_mib=sum(cell.gpu.memory_used_mib for cell in cells),
        memory_used_mib=sum(memory) if memory else None,
        memory_mib=sum(cell.gpu.memory_mib for cell in cells),
    )
