"""A pool's calendar: the holds on each GPU over time, with their holders as far as the caller may see them."""

from datetime import datetime, timedelta
from typing import Any

from django.db.models import Q
from django.utils import timezone

from apps.nodes.models import Gpu, Node
from apps.quotas.models import Pool
from apps.quotas.principals import Principal
from apps.scheduling.core import calendar
from apps.scheduling.core.calendar import FOREVER, Hold
from apps.scheduling.models import Claim, Reservation
from apps.scheduling.services.fleet.reserved import holds_of, microseconds, moment
from gpucloud.errors import Invalid, Missing

MOST_DAYS = timedelta(days=92)
# The most rows; `node` selects others.
MOST_GPUS = 512


class PeriodInvalid(Invalid, code="period-invalid", title="This period cannot be shown"):
    """The calendar cannot be shown for this period."""


class NodeMissing(Missing):
    """The pool has no such node."""


def pool_calendar(
    *, principal: Principal, pool: Pool, begin: datetime, end: datetime, node: str | None = None, most: int = MOST_GPUS
) -> dict[str, Any]:
    """Return the calendar of at most this many GPUs: future holds, and for the past the present ones.

    Raises PeriodInvalid, NodeMissing.
    """
    if not timedelta() < end - begin <= MOST_DAYS:
        days = MOST_DAYS.days
        raise PeriodInvalid(f"It must end after it begins, and be {days} days at most.", max_days=days)
    rows = Gpu.objects.filter(node__pool=pool).select_related("node").order_by("node__name", "index", "pk")
    if node is not None:
        if not Node.objects.filter(pool=pool, name=node).exists():
            raise NodeMissing(f"Pool {pool.name} has no node {node}.")
        rows = rows.filter(node__name=node)
    gpus = list(rows[: most + 1])
    shown = gpus[:most]
    holds = holds_of(Q(pk__in=[gpu.pk for gpu in shown]), now=timezone.now())
    window = microseconds(begin), microseconds(end)
    names = _names(principal, [hold for hold in holds if hold.begin_us < window[1] and hold.end_us > window[0]])
    of_gpu = calendar.by_gpu(holds)
    return {
        "pool": pool.name,
        "from": begin,
        "to": end,
        "gpus": [_row(gpu, of_gpu.get(gpu.uuid, []), names, window) for gpu in shown],
        "gpus_left_out": rows.count() - len(shown) if len(gpus) > most else 0,
    }


def _names(principal: Principal, holds: list[Hold]) -> dict[str, str]:
    """Return the names, by uid, of the holders that the caller may see."""
    found: dict[str, str] = {}
    holders = {hold.holder for hold in holds if hold.kind != calendar.OUTSIDE}
    for model in (Claim, Reservation):
        visible: Any = model.objects
        rows = visible.visible_to(principal).filter(uid__in=holders)
        found |= {str(uid): name for uid, name in rows.values_list("uid", "name")}
    return found


def _row(gpu: Gpu, holds: list[Hold], names: dict[str, str], window: tuple[int, int]) -> dict[str, Any]:
    inside = [hold for hold in holds if hold.begin_us < window[1] and hold.end_us > window[0]]
    return {
        "uuid": gpu.uuid,
        "node": gpu.node.name,
        "index": gpu.index,
        "model": gpu.model,
        "memory_mib": gpu.memory_mib,
        "intervals": [
            {"from": moment(begin), "to": moment(end), "core": core, "memory_mib": memory_mib}
            for begin, end, core, memory_mib in calendar.profile(inside, *window)
        ],
        "holds": [_describe(hold, names) for hold in sorted(inside, key=lambda hold: (hold.begin_us, hold.holder))],
    }


def _describe(hold: Hold, names: dict[str, str]) -> dict[str, Any]:
    own = hold.holder in names
    return {
        "kind": hold.kind,
        "uid": hold.holder if own else None,
        "name": names.get(hold.holder),
        "tenant": hold.tenant if own else None,
        "reservation": hold.within if own else None,
        "core": hold.core,
        "memory_mib": hold.memory_mib,
        "start_at": moment(hold.begin_us) if hold.begin_us else None,
        "end_at": None if hold.end_us >= FOREVER else moment(hold.end_us),
    }
