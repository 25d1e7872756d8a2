"""A fleet of more nodes than a page can draw: sums by pool, and the nodes with problems.

The database sums up. To read 16,000 GPUs, and to draw a cell for each, takes seconds; nobody looks at them one by one.
"""

from collections import defaultdict
from typing import Any, Final

from django.db.models import Case, Count, Exists, F, OuterRef, Q, Sum, Value, When
from django.db.models.lookups import Exact
from django.utils import timezone

from apps.console.overview.fleet_map import OF_NODE, Cell, Fleet, PoolShare, Totals
from apps.console.shell.measurements import LATEST, NOTHING, use_of_gpus
from apps.nodes.models import Gpu, Node
from apps.nodes.models.node import FRESH, state_now
from apps.nodes.services.gpu_rows import GpuRow, gpu_rows
from apps.nodes.services.telemetry.reading import PoolUse, now_of_pools
from apps.scheduling.services.reclaiming.draining import attach_progress

# As many strips as fit on a screen or two; the list of nodes has the rest.
MOST_STRIPS: Final = 24
# The size of a share; GPUs that are equal in these are counted, not read.
SIZES: Final = ("model", "memory_mib", "core_used", "core_outside", "memory_used_mib", "memory_outside_mib")
WELL: Final = Q(present=True, cordoned=False, unhealthy="")
ILL: Final = ~Q(unhealthy="") | Q(present=False)


def read_large_fleet(nodes: int) -> Fleet:
    """Read the fleet in seven queries. `nodes`: their number."""
    pools, troubled = _read_pools(), _read_troubled()
    drawn, sick = _read_gpus(troubled)
    return Fleet(
        nodes=drawn,
        totals=_sum(pools),
        node_count=nodes,
        troubled=troubled,
        troubled_gpus=sick,
        free=_read_free(),
        pools=pools,
    )


def _is_ready(path: str = "") -> Q:
    """Return the condition of GPUs whose node takes claims: as `Node.state` is, of the node at this path."""
    node = Q(**{f"{path}cordoned": False, f"{path}draining_at": None, f"{path}fenced_at": None})
    node &= Q(**{f"{path}returning_frame": None, f"{path}unhealthy": ""})
    return node & Q(**{f"{path}last_seen_at__gt": timezone.now() - FRESH})


def _read_pools() -> list[PoolShare]:
    present = Q(present=True)
    rows: Any = Gpu.objects.order_by("node__pool__natural_name").values("node__pool", "node__pool__name")
    sums = rows.annotate(
        nodes=Count("node", distinct=True),
        gpus=Count("pk", filter=present),
        ready=Count("pk", filter=WELL & _is_ready("node__")),
        core=Sum("core_used", filter=present, default=0),
        memory=Sum("memory_used_mib", filter=present, default=0),
        whole=Sum("memory_mib", filter=present, default=0),
    )
    use = now_of_pools(since=timezone.now() - LATEST)
    return [_share(row, use.get(row["node__pool"], PoolUse(0, 0.0, 0.0))) for row in sums]


def _share(row: Any, use: PoolUse) -> PoolShare:
    return PoolShare(
        pool=row["node__pool__name"],
        nodes=row["nodes"],
        totals=Totals(
            gpus=row["gpus"],
            gpus_ready=row["ready"],
            gpus_silent=max(0, row["gpus"] - use.gpus),
            core_leased_percent=row["core"] / row["gpus"] if row["gpus"] else 0.0,
            core_used_percent=use.core_percent / row["gpus"] if use.gpus and row["gpus"] else None,
            memory_leased_mib=int(row["memory"]),
            memory_used_mib=use.memory_mib if use.gpus else None,
            memory_mib=int(row["whole"]),
        ),
    )


def _sum(pools: list[PoolShare]) -> Totals:
    parts = [pool.totals for pool in pools]
    gpus = sum(part.gpus for part in parts)
    heard = [part for part in parts if part.core_used_percent is not None]
    used = sum((part.core_used_percent or 0) * part.gpus for part in heard)
    return Totals(
        gpus=gpus,
        gpus_ready=sum(part.gpus_ready for part in parts),
        gpus_silent=sum(part.gpus_silent for part in parts),
        core_leased_percent=sum(part.core_leased_percent * part.gpus for part in parts) / gpus if gpus else 0.0,
        core_used_percent=used / gpus if heard and gpus else None,
        memory_leased_mib=sum(part.memory_leased_mib for part in parts),
        memory_used_mib=sum(part.memory_used_mib or 0 for part in heard) if heard else None,
        memory_mib=sum(part.memory_mib for part in parts),
    )


def _read_troubled() -> list[Node]:
    """Return the nodes with a problem of their own or of a GPU, the former first."""
    found: Any = Node.objects.only(*OF_NODE).annotate(state_now=state_now())
    found = found.filter(~Q(state_now="ready") | Exists(Gpu.objects.filter(ILL, node=OuterRef("pk"))))
    own = Case(When(Exact(F("state_now"), Value("ready")), then=Value(1)), default=Value(0))
    nodes = list(found.order_by(own, F("natural_name")))
    attach_progress(nodes)
    return nodes


def _read_gpus(troubled: list[Node]) -> tuple[list[tuple[Node, list[Cell]]], list[tuple[Node, GpuRow]]]:
    """Return the nodes that are drawn, with their cells; and every GPU with a problem, with its node."""
    shown, by_key = troubled[:MOST_STRIPS], {node.pk: node for node in troubled}
    rows = [row for row in gpu_rows(Gpu.objects.filter(ILL | Q(node__in=shown))) if row.node_id in by_key]
    drawn = {node.pk for node in shown}
    use = use_of_gpus([row for row in rows if row.node_id in drawn]) if drawn else {}
    cells: dict[int, list[Cell]] = defaultdict(list)
    for row in rows:
        cells[row.node_id].append(Cell(row, use.get(row.uuid, NOTHING)))
    sick = [(by_key[row.node_id], row) for row in rows if row.unhealthy or not row.present]
    return [(node, cells[node.pk]) for node in shown], sick


def _read_free() -> list[tuple[GpuRow, int]]:
    """Return the GPUs that take claims, equal ones once with their number."""
    ready: Any = Gpu.objects.filter(WELL & _is_ready("node__"), mig__isnull=True).order_by("model").values_list(*SIZES)
    return [
        (
            GpuRow(
                pk=0, node_id=0, uuid="", index=0, model=model, memory_mib=memory_mib, present=True, cordoned=False,
                unhealthy="", core_used=core, core_outside=outside, memory_used_mib=used, memory_outside_mib=beside,
            ),
            number,
        )
        for model, memory_mib, core, outside, used, beside, number in ready.annotate(number=Count("pk"))
    ]  # fmt: skip
