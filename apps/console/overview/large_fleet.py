"""A fleet of more nodes than a page can draw: sums by pool, and the nodes with problems.

The database sums up. To read 16,000 GPUs, and to draw a cell for each, takes seconds; nobody looks at them one by one.
"""

from collections import defaultdict
from typing import Any, Final

from django.db.models import Case, Count, Exists, Expression, F, OuterRef, Q, Sum, Value, When
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


def read_large_fleet(nodes: int) -> Fleet:
    """Read the fleet in nine queries. `nodes`: their number."""
    pools = _read_pools()
    troubled, sick = _read_troubled()
    return Fleet(
        nodes=_window(troubled),
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


def _read_troubled() -> tuple[list[Node], list[tuple[Node, GpuRow]]]:
    """Return the nodes with a problem, the worst first, and the GPUs with one of their own."""
    ill: Any = Gpu.objects.filter(~Q(unhealthy="") | Q(present=False))
    sick: Any = Exact(state_now(), Value("ready"))
    found = Node.objects.only(*OF_NODE).prefetch_related("pool").annotate(state_now=state_now())
    found = found.filter(~Q(state_now="ready") | Exists(ill.filter(node=OuterRef("pk"))))
    worst: Expression = Case(When(sick, then=Value(1)), default=Value(0))
    nodes = list(found.order_by(worst, F("natural_name")))
    attach_progress(nodes)
    by_key = {node.pk: node for node in nodes}
    return nodes, [(by_key[gpu.node_id], gpu) for gpu in gpu_rows(ill) if gpu.node_id in by_key]


def _window(troubled: list[Node]) -> list[tuple[Node, list[Cell]]]:
    shown = troubled[:MOST_STRIPS]
    rows = gpu_rows(Gpu.objects.filter(node__in=shown))
    use, cells = use_of_gpus(rows) if rows else {}, defaultdict[int, list[Cell]](list)
    for row in rows:
        cells[row.node_id].append(Cell(row, use.get(row.uuid, NOTHING)))
    return [(node, cells[node.pk]) for node in shown]


def _read_free() -> list[tuple[GpuRow, int]]:
    """Return the GPUs that take claims, equal ones once with their number."""
    ready: Any = Gpu.objects.filter(WELL & _is_ready("node__")).order_by("model").values_list(*SIZES)
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
