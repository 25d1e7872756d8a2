"""Allocations as OpenCost has them: sets of workloads by step, each with GPU-hours, cost and efficiency.

Source of the fields and their meaning: github.com/opencost/opencost, `core/pkg/opencost/allocation_json.go` and
`docs/swagger.json`. Numbers are floats with five decimals, as there; the usage report has the exact ones.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Sum
from django.utils import timezone

from apps.accounting.services.allocations import HOURS_KEPT
from apps.accounting.services.reports import LONGEST, PeriodInvalid
from apps.quotas.models import Tenant
from apps.scheduling.core.metering import MILLIONTHS, PER_GPU_HOUR, cost
from apps.scheduling.models import AllocatedDay, AllocatedHour, Claim
from apps.scheduling.services.charging.metering import MeteredClaim, PriceBook, metered

MOST_ALLOCATIONS, MOST_STEPS = 50_000, 400
US, PLACES = 10**6, 5
# A pool is OpenCost's cluster, a tenant its namespace, and a claim its pod with one container.
LABELS = {"label:owner": "owner", "label:gpu_model": "gpu_model"}
AGGREGATES = ("all", "cluster", "namespace", "controller", "pod", "container", *LABELS)
# What gpucloud does not charge for. OpenCost's clients expect the fields.
NUMBERS_OF_OTHERS = (
    "cpuCores", "cpuCoreRequestAverage", "cpuCoreUsageAverage", "cpuCoreHours", "cpuCost", "cpuCostAdjustment",
    "cpuEfficiency", "gpuCostAdjustment", "networkTransferBytes", "networkReceiveBytes", "networkCost",
    "networkCrossZoneCost", "networkCrossRegionCost", "networkInternetCost", "networkCostAdjustment",
    "loadBalancerCost", "loadBalancerCostAdjustment", "pvBytes", "pvByteHours", "pvCost", "pvCostAdjustment",
    "ramBytes", "ramByteRequestAverage", "ramByteUsageAverage", "ramByteHours", "ramCost", "ramCostAdjustment",
    "ramEfficiency", "externalCost", "sharedCost",
)  # fmt: skip


@dataclass(slots=True)
class _Allocation:
    """The sums of one allocation: percent-microseconds, these × millionths of the currency, and measured time."""

    properties: dict[str, Any]
    core_us: int = 0
    cost: int = 0
    begin_us: int = 2**63
    end_us: int = 0
    claims: set[UUID] = field(default_factory=set)


def allocation_sets(
    *, tenants: Iterable[Tenant], begin: datetime, end: datetime, step: timedelta | None, by: tuple[str, ...]
) -> list[dict[str, dict[str, Any]]]:
    """Return one set of allocations for each step of the window, by name; the first step may be shorter.

    Time that has not come yet counts nothing. Raises PeriodInvalid.
    """
    if not begin < end or end - begin > LONGEST:
        raise PeriodInvalid(f"`window` must begin before it ends, by {LONGEST.days} days at most.")
    steps = list(_steps(begin, end, step or end - begin))
    claims, book, left = Claim.objects.filter(tenant__in=list(tenants)), PriceBook(), MOST_ALLOCATIONS
    sets = []
    for since, until in steps:
        until_now = max(since, min(until, timezone.now()))
        groups = _group(metered(claims, begin=since, end=until_now), book, by)
        left -= len(groups)
        if left < 0:
            raise PeriodInvalid(f"More than {MOST_ALLOCATIONS} allocations: shorten the window, or aggregate more.")
        measured = _measure(groups.values(), since, until)
        window = {"start": _utc(since), "end": _utc(until)}
        sets.append({name: _as_json(name, found, window, measured) for name, found in sorted(groups.items())})
    return sets


def _steps(begin: datetime, end: datetime, step: timedelta) -> Iterator[tuple[datetime, datetime]]:
    """Yield the steps, counted back from the end as OpenCost does, oldest first. Raises PeriodInvalid."""
    count = -(-(end - begin) // step)
    if count > MOST_STEPS:
        raise PeriodInvalid(f"`window` has {count} steps; {MOST_STEPS} at most: give a longer `step`.")
    for number in range(count, 0, -1):
        yield max(begin, end - number * step), end - (number - 1) * step


def _group(items: Iterable[MeteredClaim], book: PriceBook, by: tuple[str, ...]) -> dict[str, _Allocation]:
    groups: dict[str, _Allocation] = {}
    for item in items:
        for piece in item.pieces:
            facts = _facts(item, piece.model)
            name = "/".join(facts[key] for key in by if key != "all") or "all"
            found = groups.setdefault(name, _Allocation(_properties(facts, by)))
            found.core_us += piece.core_us
            found.cost += cost(piece, book.tariff(piece.model, item.pool_id))[0]
            found.begin_us = min(found.begin_us, piece.begin_us)
            found.end_us = max(found.end_us, piece.end_us)
            found.claims.add(item.uid)
    return groups


def _facts(item: MeteredClaim, model: str) -> dict[str, str]:
    uid = str(item.uid)
    return {
        "cluster": item.pool, "namespace": item.tenant, "controller": item.name or uid, "pod": uid,
        "container": item.name or uid, "label:owner": item.owner, "label:gpu_model": model,
    }  # fmt: skip


def _properties(facts: dict[str, str], by: tuple[str, ...]) -> dict[str, Any]:
    """Return what all workloads of an allocation have in common: all facts of a claim, or the keys of the name."""
    known = {*by, *facts} if "pod" in by else {*by}
    if "label:gpu_model" not in by:
        # A claim may have GPUs of several models.
        known.discard("label:gpu_model")
    properties: dict[str, Any] = {key: facts[key] for key in facts if key in known and key not in LABELS}
    if "controller" in properties:
        properties["controllerKind"] = "claim"
    labels = {LABELS[key]: facts[key] for key in LABELS if key in known}
    return properties | ({"labels": labels} if labels else {})


def _measure(groups: Iterable[_Allocation], since: datetime, until: datetime) -> dict[UUID, tuple[int, int]]:
    """Return allocated and used milliseconds by claim, of the hours or days that begin in the step."""
    uids = {uid for found in groups for uid in found.claims}
    table: type[AllocatedDay | AllocatedHour] = AllocatedHour if since >= timezone.now() - HOURS_KEPT else AllocatedDay
    rows = table.objects.filter(uid__in=uids, at__gte=since, at__lt=until).values("uid")
    sums = rows.annotate(reserved=Sum("reserved_ms"), used=Sum("used_ms"))
    return {row["uid"]: (int(row["reserved"]), int(row["used"])) for row in sums}


def _as_json(
    name: str, found: _Allocation, window: dict[str, str], measured: dict[UUID, tuple[int, int]]
) -> dict[str, Any]:
    """Return an allocation with OpenCost's fields. `gpuCount` is the mean number of GPUs while it ran."""
    hours, minutes = found.core_us / PER_GPU_HOUR, (found.end_us - found.begin_us) / (60 * US)
    money = found.cost / PER_GPU_HOUR / MILLIONTHS
    counted = [measured[uid] for uid in found.claims if uid in measured]
    reserved_ms, used_ms = (sum(column) for column in zip(*counted, strict=True)) if counted else (0, 0)
    # Null where nothing is counted yet, as OpenCost writes a number that it does not know.
    efficiency = used_ms / reserved_ms if reserved_ms else None
    count = hours * 60 / minutes
    numbers = {
        "minutes": minutes, "gpuCount": count, "gpuRequestAverage": count,
        "gpuUsageAverage": None if efficiency is None else efficiency * count,
        "gpuHours": hours, "gpuCost": money, "gpuEfficiency": efficiency,
        "totalCost": money, "totalEfficiency": efficiency,
    }  # fmt: skip
    return {
        "name": name,
        "properties": found.properties,
        "window": window,
        "start": _utc(datetime.fromtimestamp(found.begin_us / US, tz=UTC)),
        "end": _utc(datetime.fromtimestamp(found.end_us / US, tz=UTC)),
        **dict.fromkeys(NUMBERS_OF_OTHERS, 0.0),
        **{key: None if value is None else round(value, PLACES) for key, value in numbers.items()},
        "pvs": None,
        "lbAllocations": None,
    }


def _utc(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
