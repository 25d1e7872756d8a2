"""Measurements as pages show them: the last few seconds as one number, the last minutes as a chart."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final, Protocol
from uuid import UUID

from django.db.models import Prefetch
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from apps.accounting.services import utilization
from apps.console.shell.chart_span import ChartSpan, last_minutes
from apps.nodes.models import Gpu
from apps.nodes.services.telemetry import reading
from apps.quotas.models import AuditEvent
from apps.scheduling.models import Assignment, Claim, ClaimState
from apps.scheduling.models.claim import PUT_ASIDE
from apps.scheduling.services.charging.shortages import refresh_quota_reasons

# An agent reports once a second; an older sample says nothing about now.
LATEST: Final = timedelta(seconds=15)
# The span of samples that one number averages.
MEAN: Final = timedelta(seconds=5)


# Only series with borrowed memory have these.
BORROWED: Final = ("borrowed_mib", "memory_out_mib", "moved_mib_per_second", "stood_percent")


@dataclass(frozen=True, slots=True)
class Use:
    """Means over the last seconds; None without a sample."""

    core_percent: float | None = None
    memory_mib: float | None = None


NOTHING: Final = Use()


class Known(Protocol):
    """The attributes that are read of a GPU."""

    @property
    def pk(self) -> Any: ...
    @property
    def node_id(self) -> int: ...
    @property
    def uuid(self) -> str: ...


def watts_of_gpus(gpus: Collection[Gpu]) -> dict[str, float | None]:
    """Return the power of each GPU's board by uuid, of its latest sample; None: it told none. One query."""
    found = utilization.of_gpus(gpus, start=None, end=None, step_seconds=None)
    return {one["gpu_uuid"]: next(reversed(one["power_watts"]), None) for one in found}


def use_of_gpus(gpus: Collection[Known]) -> dict[str, Use]:
    """Return the use by GPU uuid; GPUs without samples are left out."""
    nodes = {gpu.node_id for gpu in gpus}
    found = reading.now_of_gpus(nodes, since=timezone.now() - LATEST, mean=MEAN)
    return {gpu.uuid: Use(*found[gpu.pk]) for gpu in gpus if gpu.pk in found}


def use_of_assignments(assignments: Iterable[Assignment]) -> dict[Any, Use]:
    """Return the use by assignment uid."""
    rows = utilization.of_assignments(assignments, **_latest())
    return {row["assignment"]: _last(row) for row in rows}


def chart_of_claim(claim: Claim, span: ChartSpan | None = None) -> dict[str, Any]:
    """Return the data of the claim's charts: a series per assignment, and marks at changes of its limits."""
    span = span or last_minutes()
    live = [item for item in claim.assignments.all() if item.state != "released"]
    resizes = _resizes([claim], span)
    series = _shares(live or claim.assignments.all(), {claim.uid: claim}, resizes, span)
    mine = [event for event in resizes[str(claim.uid)] if event.at <= span.end]
    marks = [{"at": event.at.timestamp(), "label": difference(event)} for event in mine]
    return {**_frame(span, series), "marks": marks, "bands": _suspended(claim)}


def _suspended(claim: Claim) -> list[dict[str, float | None]]:
    """Return the spans in which the claim's programs stood still, in Unix seconds; `to` None: they still do."""
    bands: list[dict[str, float | None]] = []
    begun: float | None = None
    for state, at in claim.timeline:
        when = datetime.fromisoformat(at).timestamp()
        if state == ClaimState.SUSPENDED and begun is None:
            begun = when
        elif state not in PUT_ASIDE and begun is not None:
            bands.append({"from": begun, "to": when})
            begun = None
    return [*bands, {"from": begun, "to": None}] if begun is not None else bands


def chart_of_shares(gpu: Gpu, assignments: Iterable[Assignment], span: ChartSpan | None = None) -> dict[str, Any]:
    """Return the data of a GPU's charts: its own series, and one per assignment on it."""
    span = span or last_minutes()
    claims = {item.claim.uid: item.claim for item in assignments}
    shares = _shares(assignments, claims, _resizes(claims.values(), span), span)
    whole = [{"key": gpu.uuid, **_numbers(row)} for row in utilization.of_gpus([gpu], **span.window)]
    return {**_frame(span, [*whole, *shares]), "marks": []}


def _shares(
    assignments: Iterable[Assignment],
    claims: Mapping[UUID, Claim],
    resizes: Mapping[str, Sequence[AuditEvent]],
    span: ChartSpan,
) -> list[dict[str, Any]]:
    """Return a series per assignment, with its claim's guarantee at each time."""
    rows = utilization.of_assignments(assignments, **span.window)
    return [
        {
            "key": str(row["assignment"]),
            **_numbers(row),
            "core_request_percent": _guaranteed(row, claims[row["claim"]], resizes[str(row["claim"])]),
        }
        for row in rows
    ]


def _guaranteed(row: Mapping[str, Any], claim: Claim, resizes: Iterable[AuditEvent]) -> list[int | None]:
    """Return the guarantee at each time of the series; `resizes`: those since its begin, oldest first."""
    if claim.best_effort:
        return [None] * len(row["times"])
    if claim.own_core is not None:  # the rest of its instance is other claims'
        return [claim.own_core] * len(row["times"])
    former = [(event.at.timestamp(), (event.before or {}).get("core_request")) for event in resizes]
    return [next((core for end, core in former if at < end), claim.core_request) for at in row["times"]]


def chart_of_gpus(gpus: Iterable[Gpu], span: ChartSpan | None = None) -> dict[str, Any]:
    """Return the data of a node's charts: two series per GPU, its use and, as `UUID/power`, its power."""
    span = span or last_minutes()
    rows = utilization.of_gpus(gpus, **span.window)
    use = [{"key": row["gpu_uuid"], **_numbers(row)} for row in rows]
    return {**_frame(span, [*use, *map(_power, rows)]), "marks": []}


def _power(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the power of a GPU's board, without the times at which it told none."""
    told = [(at, watts) for at, watts in zip(row["times"], row["power_watts"], strict=True) if watts is not None]
    times, watts = ([pair[place] for pair in told] for place in (0, 1))
    return {"key": f"{row['gpu_uuid']}/power", "times": times, "power_watts": watts}


def _frame(span: ChartSpan, series: list[dict[str, Any]]) -> dict[str, Any]:
    length = (span.end - span.begin).total_seconds()
    # Points stand at whole steps: the least distance of two is the step.
    steps = [later - at for one in series for at, later in pairwise(one["times"])]
    facts = {"now": timezone.now().timestamp(), "window_seconds": length, "step_seconds": min(steps, default=0)}
    return {**facts, "live": span.live, "series": series}


def _latest() -> dict[str, Any]:
    now = timezone.now()
    return {"start": now - LATEST, "end": None, "step_seconds": int(LATEST.total_seconds())}


def _last(row: Mapping[str, Any]) -> Use:
    return Use(row["core_percent"][-1], row["memory_mib"][-1]) if row["times"] else NOTHING


def _numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("core_percent", "core_limit_percent", "throttled_percent", "memory_mib", "memory_limit_mib", *BORROWED)
    columns = {
        name: [None if value is None else round(value, 2) for value in row[name]] for name in names if name in row
    }
    return {"times": row["times"], **columns}


def _resizes(claims: Iterable[Claim], span: ChartSpan) -> Mapping[str, list[AuditEvent]]:
    """Return the claims' resizes since the span's begin, by uid, oldest first.

    Viewers of a claim see them without their authors.
    """
    uids = [str(claim.uid) for claim in claims]
    rows = AuditEvent.objects.filter(object_type="claim", object_id__in=uids, action="claim.resize")
    found = defaultdict[str, list[AuditEvent]](list)
    for event in rows.filter(at__gte=span.begin).order_by("pk"):
        found[event.object_id].append(event)
    return found


WORDS: Final = {
    "core_request": _("request"),
    "core_limit": _("limit"),
    "memory_mib": _("memory"),
    "memory_limit_mib": _("memory limit"),
    "weight": _("weight"),
    "best_effort": _("best effort"),
}
UNITS: Final = {"core_request": " %", "core_limit": " %", "memory_mib": " MiB", "memory_limit_mib": " MiB"}


def _amount(value: Any, unit: str = "") -> str:
    return "–" if value is None else f"{value}{unit}"


def difference(event: AuditEvent) -> str:
    """Return the changes of a resize in words: `limit 25 → 75 %, memory 4096 → 2048 MiB`."""
    before, after = event.before or {}, event.after or {}
    return ", ".join(
        f"{word} {_amount(before.get(name))} → {_amount(after[name], UNITS.get(name, ''))}"
        for name, word in WORDS.items()
        if after.get(name) != before.get(name)
    )


def with_places(claims: Any) -> Any:
    """Return the claims with tenant, pool and GPUs; two queries."""
    placed = Prefetch("assignments", Assignment.objects.select_related("claim", "gpu__node"))
    return claims.select_related("tenant", "pool").prefetch_related(placed)


def with_use(claims: Iterable[Claim]) -> list[dict[str, Any]]:
    """Return the claims of `with_places` as tables show them, with their present use."""
    rows = refresh_quota_reasons(list(claims))
    live = {row.pk: [item for item in row.assignments.all() if item.state != "released"] for row in rows}
    use = use_of_assignments([item for items in live.values() for item in items])
    return [
        {
            "claim": row,
            "assignments": live[row.pk],
            "core_percent": _mean([use.get(item.uid, NOTHING).core_percent for item in live[row.pk]]),
            "memory_mib": _mean([use.get(item.uid, NOTHING).memory_mib for item in live[row.pk]]),
        }
        for row in rows
    ]


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
