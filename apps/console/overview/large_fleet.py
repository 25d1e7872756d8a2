"""A fleet of more nodes than a page can draw: sums by pool, and some of the nodes with problems.

The database sums up. To read 16,000 GPUs, and to draw a cell for each, takes seconds; nobody looks at them one by one.
Sums read every row of the fleet, so they are kept for a time in proportion to their cost (`kept_sums`); problems are
read anew, as many as a page names.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from django.db.models import BooleanField, Case, Count, Exists, F, OuterRef, Q, Value, When, Window
from django.db.models.functions import RowNumber
from django.db.models.lookups import Exact
from django.utils import timezone

from apps.console.overview.fleet_map import OF_NODE, Cell, Fleet, PoolShare, Totals
from apps.console.overview.notices import READ
from apps.console.shell.kept_sums import keep_sums
from apps.console.shell.measurements import LATEST, NOTHING, use_of_gpus
from apps.nodes.models import Gpu, Node
from apps.nodes.models.gpu import ILL
from apps.nodes.models.node import FRESH, state_now
from apps.nodes.services.gpu_rows import GpuRow, gpu_rows
from apps.nodes.services.telemetry.reading import PoolUse, now_of_pools
from apps.quotas.models import Pool
from apps.scheduling.services.reclaiming.draining import attach_progress

# As many strips as fit on a screen or two; the list of nodes has the rest.
MOST_STRIPS: Final = 24
# The size of a share; GPUs that are equal in these are counted, not read.
SIZES: Final = ("model", "memory_mib", "core_used", "core_outside", "memory_used_mib", "memory_outside_mib")
WELL: Final = Q(present=True, cordoned=False, unhealthy="")


class Sums(NamedTuple):
    """Sums over every row of the fleet: its pools, nodes by state, and GPUs that take claims."""

    pools: list[PoolShare]
    states: dict[str, int]
    free: list[tuple[GpuRow, int]]


def read_large_fleet(nodes: int) -> Fleet:
    """Read the fleet. `nodes`: their number."""
    sums = keep_sums("fleet", _read_sums)
    troubled = _read_troubled()
    drawn, sick = _read_gpus(troubled)
    return Fleet(
        nodes=drawn,
        totals=_add_up(sums.pools),
        node_count=nodes,
        troubled=troubled,
        troubled_gpus=sick,
        free=sums.free,
        pools=sums.pools,
        states=sums.states,
    )


def _is_ready(path: str = "") -> Q:
    """Return the condition of GPUs whose node takes claims: as `Node.state` is, of the node at this path."""
    node = Q(**{f"{path}cordoned": False, f"{path}draining_at": None, f"{path}fenced_at": None})
    node &= Q(**{f"{path}returning_frame": None, f"{path}unhealthy": ""})
    return node & Q(**{f"{path}last_seen_at__gt": timezone.now() - FRESH})


class _Equal(NamedTuple):
    """GPUs of a pool that are equal in what is summed up."""

    pool: int
    present: bool
    ready: bool
    whole: bool
    size: GpuRow
    number: int


def _read_sums() -> Sums:
    equal = _read_equal()
    of_pool: dict[int, list[_Equal]] = defaultdict(list)
    for one in equal:
        of_pool[one.pool].append(one)
    nodes, states = _count_nodes()
    use = now_of_pools(since=timezone.now() - LATEST)
    pools = [
        PoolShare(pool=name, nodes=nodes[key], totals=_totals(of_pool[key], use.get(key, PoolUse(0, 0.0, 0.0))))
        for key, name in Pool.objects.filter(pk__in=nodes).order_by("natural_name").values_list("pk", "name")
    ]
    return Sums(pools, states, [(one.size, one.number) for one in equal if one.ready and one.whole])


def _read_equal() -> list[_Equal]:
    """Read all GPUs, equal ones once with their number."""
    takes_claims = Case(
        When(WELL & _is_ready("node__"), then=Value(value=True)),
        default=Value(value=False),
        output_field=BooleanField(),
    )
    whole = Case(When(mig__isnull=True, then=Value(value=True)), default=Value(value=False))
    found: Any = Gpu.objects.annotate(ready=takes_claims, whole=whole).order_by("model")
    rows = found.values_list("node__pool", "present", "ready", "whole", *SIZES).annotate(number=Count("pk"))
    return [
        _Equal(pool, present, ready, whole, _row(*size), number) for pool, present, ready, whole, *size, number in rows
    ]


def _row(model: str, *size: int) -> GpuRow:
    memory_mib, core, outside, used, beside = size
    return GpuRow(
        pk=0, node_id=0, uuid="", index=0, model=model, memory_mib=memory_mib, present=True, cordoned=False,
        unhealthy="", core_used=core, core_outside=outside, memory_used_mib=used, memory_outside_mib=beside,
    )  # fmt: skip


def _count_nodes() -> tuple[dict[int, int], dict[str, int]]:
    """Return the number of nodes by pool (primary key), and by state."""
    pools: dict[int, int] = defaultdict(int)
    states: dict[str, int] = defaultdict(int)
    found: Any = Node.objects.annotate(state_now=state_now()).order_by().values_list("pool", "state_now")
    for pool, state, number in found.annotate(number=Count("pk")):
        pools[pool] += number
        states[state] += number
    return pools, states


def _totals(equal: Iterable[_Equal], use: PoolUse) -> Totals:
    here = [(one.size, one.number) for one in equal if one.present]
    gpus = sum(number for _, number in here)
    return Totals(
        gpus=gpus,
        gpus_ready=sum(one.number for one in equal if one.ready),
        gpus_silent=max(0, gpus - use.gpus),
        core_leased_percent=sum(gpu.core_used * number for gpu, number in here) / gpus if gpus else 0.0,
        core_used_percent=use.core_percent / gpus if use.gpus and gpus else None,
        memory_leased_mib=sum(gpu.memory_used_mib * number for gpu, number in here),
        memory_used_mib=use.memory_mib if use.gpus else None,
        memory_mib=sum(gpu.memory_mib * number for gpu, number in here),
    )


def _add_up(pools: list[PoolShare]) -> Totals:
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
    """Return nodes with a problem of their own or of a GPU, the former first: at most so many of each state."""
    found: Any = Node.objects.only(*OF_NODE).annotate(state_now=state_now())
    found = found.filter(~Q(state_now="ready") | Exists(Gpu.objects.filter(ILL, node=OuterRef("pk"))))
    place = Window(RowNumber(), partition_by=[F("state_now")], order_by=F("natural_name").asc())
    own = Case(When(Exact(F("state_now"), Value("ready")), then=Value(1)), default=Value(0))
    nodes = list(found.annotate(place=place).filter(place__lte=READ).order_by(own, F("natural_name")))
    attach_progress(nodes)
    return nodes


def _read_gpus(troubled: list[Node]) -> tuple[list[tuple[Node, list[Cell]]], list[tuple[Node, GpuRow]]]:
    """Return the nodes that are drawn, with their cells; and GPUs of troubled nodes with a problem."""
    shown, by_key = troubled[:MOST_STRIPS], {node.pk: node for node in troubled}
    rows = gpu_rows(Gpu.objects.filter((ILL & Q(node__in=troubled)) | Q(node__in=shown)))
    drawn = {node.pk for node in shown}
    use = use_of_gpus([row for row in rows if row.node_id in drawn]) if drawn else {}
    cells: dict[int, list[Cell]] = defaultdict(list)
    for row in rows:
        cells[row.node_id].append(Cell(row, use.get(row.uuid, NOTHING)))
    sick = [(by_key[row.node_id], row) for row in rows if row.unhealthy or not row.present]
    return [(node, cells[node.pk]) for node in shown], sick
