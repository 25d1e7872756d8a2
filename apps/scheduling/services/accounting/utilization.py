"""Reading measurements back: the latest, or a window in steps."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from apps.nodes.models import Gpu
from apps.nodes.services.telemetry import reading
from apps.nodes.services.telemetry.reading import Point, Series
from apps.scheduling.models import Assignment
from gpucloud.errors import Invalid

MIB = 1 << 20
# A chart has no more pixels than this; a longer window needs a longer step.
MAX_POINTS = 5000
# Of all series together: what is read, made and sent within a fifth of a second.
MAX_POINTS_IN_ALL = 50_000
# What is chosen unless asked: at most so many points a series, and so many in all.
CHOSEN_POINTS = 400
CHOSEN_POINTS_IN_ALL = 20_000
# Lengths that people read easily, in seconds; each level of roll-ups fits into those above it.
STEPS = (1, 10, 30, 60, 300, 900, 3600, 4 * 3600, 86_400, 7 * 86_400, 28 * 86_400)


class WindowTooLong(Invalid):
    """The window has more points than an answer may hold."""

    code = "window-too-long"
    title = "Too many points"


def of_assignments(
    assignments: Iterable[Assignment], *, start: datetime | None, end: datetime | None, step_seconds: float | None
) -> list[dict[str, Any]]:
    """A series per assignment. Without a step, one is chosen by the window and the number of series."""
    rows = list(assignments)
    series = [Series(row.gpu.node_id, row.gpu_id, row.uid) for row in rows]
    found = _points(series, start, end, step_seconds)
    return [
        {"claim": row.claim.uid, "assignment": row.uid, "gpu_uuid": row.gpu.uuid, **_columns(points)}
        for row, points in zip(rows, found, strict=True)
    ]


def of_gpus(
    gpus: Iterable[Gpu], *, start: datetime | None, end: datetime | None, step_seconds: float | None
) -> list[dict[str, Any]]:
    """A series per GPU."""
    rows = list(gpus)
    found = _points([Series(gpu.node_id, gpu.pk) for gpu in rows], start, end, step_seconds)
    return [
        {"claim": None, "assignment": None, "gpu_uuid": gpu.uuid, **_columns(points)}
        for gpu, points in zip(rows, found, strict=True)
    ]


def _points(
    series: Sequence[Series], start: datetime | None, end: datetime | None, step_seconds: float | None
) -> list[list[Point]]:
    now = timezone.now()
    if start is None:
        return reading.latest(series, now=now)
    end = min(end or now, now + timedelta(hours=1))
    seconds = max(0.0, (end - start).total_seconds())
    step = step_seconds or _chosen(seconds, len(series))
    if seconds / step > MAX_POINTS:
        raise WindowTooLong(f"At most {MAX_POINTS} points a series: use a longer step.", max_points=MAX_POINTS)
    if seconds / step * len(series) > MAX_POINTS_IN_ALL:
        raise WindowTooLong(
            f"At most {MAX_POINTS_IN_ALL} points of {len(series)} series together: use a longer step, or ask for less.",
            max_points=MAX_POINTS_IN_ALL // len(series),
        )
    return reading.window(series, begin=start, end=end, step=timedelta(seconds=step), now=now)


def _chosen(seconds: float, series: int) -> float:
    most = max(1, min(CHOSEN_POINTS, CHOSEN_POINTS_IN_ALL // max(1, series)))
    return next((step for step in STEPS if seconds / step <= most), max(STEPS[-1], seconds))


def _columns(points: Sequence[Point]) -> dict[str, Any]:
    times = [point.at.timestamp() for point in points]
    return {
        "times": times,
        "core_percent": [point.core for point in points],
        "core_limit_percent": [point.core_limit for point in points],
        "throttled_percent": [point.throttled for point in points],
        "memory_mib": [point.memory / MIB for point in points],
        "memory_limit_mib": [None if point.memory_limit is None else point.memory_limit / MIB for point in points],
        "age_seconds": max(0.0, timezone.now().timestamp() - times[-1]) if times else None,
    }
