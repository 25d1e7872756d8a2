"""Efficiency: allocated less used GPU-hours of a range, by person, claim, tenant or pool. Sums of roll-ups, in SQL."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import F, Func, QuerySet, Sum, TextField, Value
from django.utils import timezone

from apps.accounting.services.allocations import MARK
from apps.nodes.models import TelemetryMark
from apps.nodes.services.telemetry.levels import DAY, HOUR, Level, floor
from apps.quotas.models import Pool, Tenant
from apps.quotas.principals import VIA, Principal
from apps.scheduling.models import AllocatedDay, AllocatedHour, Claim, Reservation

# The level of the roll-ups, and the number of spans; the last one is the present hour or day.
RANGES: dict[str, tuple[Level, int]] = {"day": (HOUR, 24), "week": (DAY, 7), "30days": (DAY, 30)}
MS_PER_GPU_HOUR = 3_600_000
MOST_ROWS = 5000

PERSON = Func(F("owner"), Value(VIA), Value(1), function="split_part", output_field=TextField())
GROUPS: dict[str, Any] = {"person": PERSON, "claim": F("uid"), "tenant": F("tenant_id"), "pool": F("pool_id")}


@dataclass(frozen=True, slots=True)
class Scope:
    """The part of the platform that a report covers; None: all that the reader may see."""

    tenant: Tenant | None = None
    pool: Pool | None = None
    person: str | None = None


def efficiency(
    *,
    principal: Principal,
    by: str = "person",
    within: str = "week",
    scope: Scope | None = None,
    limit: int = MOST_ROWS,
) -> dict[str, Any]:
    """Return the `limit` groups with the most unused GPU-hours, the trend and the totals.

    Only tenants that the principal sees are counted. `percent` is the used part of what was allocated; None if nothing
    was. A claim that used more than it was allocated has negative unused hours.
    """
    level, count = RANGES[within]
    now = timezone.now()
    begin = floor(now, level.span) - (count - 1) * level.span
    table: type[AllocatedDay | AllocatedHour] = AllocatedHour if level is HOUR else AllocatedDay
    rows = _visible(table.objects.filter(at__gte=begin), principal, scope or Scope())
    trend = _trend(rows, [begin + number * level.span for number in range(count)])
    sums = rows.values(key=GROUPS[by]).annotate(reserved=Sum("reserved_ms"), used=Sum("used_ms"))
    found = list(sums.order_by(F("used") - F("reserved"), "key")[: limit + 1])
    return {
        "from": begin,
        "to": now,
        "counted_until": TelemetryMark.objects.filter(name=MARK).values_list("at", flat=True).first(),
        "by": by,
        "range": within,
        "step_seconds": int(level.span.total_seconds()),
        "rows": _named(by, found[:limit]),
        "more": len(found) > limit,
        "trend": [{"at": at, **hours_of(*sums)} for at, sums in trend.items()],
        "total": hours_of(*(sum(column) for column in zip(*trend.values(), strict=True))),
    }


def hours_of(reserved_ms: int, used_ms: int) -> dict[str, float | None]:
    """Return GPU-milliseconds as the numbers of a row."""
    reserved, used = reserved_ms / MS_PER_GPU_HOUR, used_ms / MS_PER_GPU_HOUR
    return {
        "gpu_hours_reserved": round(reserved, 3),
        "gpu_hours_used": round(used, 3),
        "gpu_hours_unused": round(reserved - used, 3),
        "percent": round(100 * used_ms / reserved_ms, 1) if reserved_ms else None,
    }


def _visible(rows: QuerySet[Any], principal: Principal, scope: Scope) -> QuerySet[Any]:
    if not principal.is_operator:
        rows = rows.filter(tenant__in=principal.roles)
    if scope.tenant is not None:
        rows = rows.filter(tenant=scope.tenant)
    if scope.pool is not None:
        rows = rows.filter(pool=scope.pool)
    return rows if scope.person is None else rows.alias(person=PERSON).filter(person=scope.person)


def _trend(rows: QuerySet[Any], spans: Sequence[datetime]) -> dict[datetime, tuple[int, int]]:
    """Return allocated and used milliseconds of each span, zeros too."""
    sums = rows.values("at").annotate(reserved=Sum("reserved_ms"), used=Sum("used_ms"))
    found = {row["at"]: (int(row["reserved"]), int(row["used"])) for row in sums}
    return {at: found.get(at, (0, 0)) for at in spans}


def _named(by: str, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with names for keys; by claim also tenant, pool, owner and the kind."""
    facts = _facts(by, [row["key"] for row in found])
    return [{**facts[row["key"]], **hours_of(int(row["reserved"]), int(row["used"]))} for row in found]


def _facts(by: str, keys: list[Any]) -> dict[Any, dict[str, Any]]:
    none = dict.fromkeys(("name", "uid", "kind", "tenant", "pool", "owner"))
    if by == "person":
        return {key: {**none, "name": key} for key in keys}
    if by == "tenant":
        return {row.pk: {**none, "name": row.slug} for row in Tenant.objects.filter(pk__in=keys)}
    if by == "pool":
        return {row.pk: {**none, "name": row.name} for row in Pool.objects.filter(pk__in=keys)}
    # A row outlives a claim that an operator deleted by hand.
    facts: dict[Any, dict[str, Any]] = {key: {**none, "name": str(key), "uid": key} for key in keys}
    for kind, model in (("reservation", Reservation), ("claim", Claim)):
        rows = model.objects.filter(uid__in=keys)
        for uid, name, tenant, pool, owner in rows.values_list(
            "uid", "name", "tenant__slug", "pool__name", "created_by"
        ):
            facts[uid] = {"name": name, "uid": uid, "kind": kind, "tenant": tenant, "pool": pool, "owner": owner}
    return facts
