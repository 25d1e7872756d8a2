"""Reading measurements back: the latest, or a window in steps."""

import uuid
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Avg, DateTimeField, F, Func, QuerySet, Value
from django.utils import timezone

from apps.nodes.models import Gpu, Sample
from apps.scheduling.models import Assignment
from gpucloud.errors import Invalid

MIB = 1 << 20
# A chart has no more pixels than this; a longer window needs a longer step.
MAX_POINTS = 5000
# How far back the latest sample is looked for: an older one says nothing about now.
LATEST_WITHIN = timedelta(hours=1)

FIELDS = ("core_percent", "core_limit_percent", "throttled_percent", "memory_bytes", "memory_limit_bytes")


class WindowTooLong(Invalid):
    """The window has more points than an answer may hold."""

    code = "window-too-long"
    title = "Too many points"


class Binned(Func):
    """date_bin(step, at, epoch): the start of the step in which a sample lies."""

    function = "date_bin"
    template = "%(function)s(%(expressions)s, TIMESTAMPTZ 'epoch')"
    output_field = DateTimeField()


def of_assignments(
    assignments: Iterable[Assignment], *, start: datetime | None, end: datetime | None, step_seconds: float
) -> list[dict[str, Any]]:
    """A series per assignment."""
    rows = {item.uid: item for item in assignments}
    points = _points(
        Sample.objects.filter(gpu=None, assignment_uid__in=list(rows)), "assignment_uid", start, end, step_seconds
    )
    return [
        {"claim": item.claim.uid, "assignment": uid, "gpu_uuid": item.gpu.uuid, **_columns(points[uid])}
        for uid, item in rows.items()
    ]


def of_gpus(
    gpus: Iterable[Gpu], *, start: datetime | None, end: datetime | None, step_seconds: float
) -> list[dict[str, Any]]:
    """A series per GPU."""
    rows = {gpu.pk: gpu for gpu in gpus}
    points = _points(Sample.objects.filter(gpu__in=list(rows)), "gpu_id", start, end, step_seconds)
    return [
        {"claim": None, "assignment": None, "gpu_uuid": gpu.uuid, **_columns(points[pk])} for pk, gpu in rows.items()
    ]


def _points(
    samples: QuerySet[Sample], key: str, start: datetime | None, end: datetime | None, step_seconds: float
) -> dict[int | uuid.UUID | None, list[dict[str, Any]]]:
    now = timezone.now()
    if start is None:
        latest = samples.filter(at__gte=now - LATEST_WITHIN).order_by(key, "-at").distinct(key)
        values: Iterable[dict[str, Any]] = latest.values(key, *FIELDS, "at")
    else:
        end = end or now
        if (end - start).total_seconds() / step_seconds > MAX_POINTS:
            raise WindowTooLong(f"At most {MAX_POINTS} points a series: use a longer step.", max_points=MAX_POINTS)
        binned = Binned(Value(timedelta(seconds=step_seconds)), F("at"))
        means = {name: Avg(name) for name in FIELDS}
        inside = samples.filter(at__gte=start, at__lt=end).annotate(bin=binned)
        values = [{**row, "at": row["bin"]} for row in inside.values(key, "bin").annotate(**means).order_by(key, "bin")]
    by_key: dict[int | uuid.UUID | None, list[dict[str, Any]]] = defaultdict(list)
    for row in values:
        by_key[row[key]].append(row)
    return by_key


def _columns(points: list[dict[str, Any]]) -> dict[str, Any]:
    def column(name: str, unit: int = 1) -> list[float | None]:
        return [None if point[name] is None else point[name] / unit for point in points]

    times = [point["at"].timestamp() for point in points]
    return {
        "times": times,
        "core_percent": column("core_percent"),
        "core_limit_percent": column("core_limit_percent"),
        "throttled_percent": column("throttled_percent"),
        "memory_mib": column("memory_bytes", MIB),
        "memory_limit_mib": column("memory_limit_bytes", MIB),
        "age_seconds": max(0.0, timezone.now().timestamp() - times[-1]) if times else None,
    }
