"""Measured utilization: the latest values, or a window in steps."""

import uuid
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import QuerySet
from django.utils import timezone

from apps.nodes.models import Gpu
from apps.nodes.services.telemetry import reading
from apps.nodes.services.telemetry.levels import floor
from apps.nodes.services.telemetry.reading import Curve, Series, Window
from apps.scheduling.models import Assignment
from gpucloud.errors import Invalid

# A chart has no more pixels than this; a longer window needs a longer step.
MAX_POINTS = 5000
# The points of all series together that can be made and sent within a fifth of a second.
MAX_POINTS_IN_ALL = 50_000
# The rows that can be read within that time.
MAX_READ = 65_000
# The most points a series, and in all, for a step that is chosen here.
CHOSEN_POINTS = 400
CHOSEN_POINTS_IN_ALL = 15_000
# Lengths that people read easily, in seconds; each level of roll-ups fits into those above it.
STEPS = (1, 10, 30, 60, 300, 900, 3600, 4 * 3600, 86_400, 7 * 86_400, 28 * 86_400)


class WindowTooLong(Invalid, code="window-too-long", title="Too many points"):
    """The window has more points than an answer may hold."""


class _Named(NamedTuple):
    claim: uuid.UUID
    assignment: uuid.UUID
    gpu_uuid: str
    node_id: int
    gpu_id: int


def of_assignments(
    assignments: Iterable[Assignment], *, start: datetime | None, end: datetime | None, step_seconds: float | None
) -> list[dict[str, Any]]:
    """Return a series per assignment. Without a step, one is chosen by the window and the number of series."""
    rows = _name_rows(assignments)
    found = _points([Series(row.node_id, row.gpu_id, row.assignment) for row in rows], start, end, step_seconds)
    return [
        {"claim": row.claim, "assignment": row.assignment, "gpu_uuid": row.gpu_uuid, **_columns(curve)}
        for row, curve in zip(rows, found, strict=True)
    ]


def _name_rows(assignments: Iterable[Assignment]) -> list[_Named]:
    """Return the needed columns only: a tenant has hundreds of assignments."""
    if isinstance(assignments, QuerySet):
        columns = "claim__uid", "uid", "gpu__uuid", "gpu__node_id", "gpu_id"
        return [_Named._make(row) for row in assignments.select_related(None).values_list(*columns)]
    return [_Named(row.claim.uid, row.uid, row.gpu.uuid, row.gpu.node_id, row.gpu_id) for row in assignments]


def of_gpus(
    gpus: Iterable[Gpu], *, start: datetime | None, end: datetime | None, step_seconds: float | None
) -> list[dict[str, Any]]:
    """Return a series per GPU."""
    rows = list(gpus)
    found = _points([Series(gpu.node_id, gpu.pk) for gpu in rows], start, end, step_seconds)
    return [
        {"claim": None, "assignment": None, "gpu_uuid": gpu.uuid, **_columns(curve)}
        for gpu, curve in zip(rows, found, strict=True)
    ]


def _points(
    series: Sequence[Series], start: datetime | None, end: datetime | None, step_seconds: float | None
) -> list[Curve]:
    now = timezone.now()
    if start is None:
        return reading.latest(series, now=now)
    window = Window(start, min(end or now, now + timedelta(hours=1)), timedelta(), now, reading.rolled_until())
    if step_seconds is None:
        window = _chosen(series, window)
    else:
        window = window._replace(step=timedelta(seconds=step_seconds))
        _require_readable(series, window)
    return reading.window(series, window)


def _require_readable(series: Sequence[Series], window: Window) -> None:
    points = max(0.0, (window.end - window.begin) / window.step)
    if points > MAX_POINTS:
        raise WindowTooLong(f"At most {MAX_POINTS} points a series: use a longer step.", max_points=MAX_POINTS)
    if points * len(series) > MAX_POINTS_IN_ALL:
        raise WindowTooLong(
            f"At most {MAX_POINTS_IN_ALL} points of {len(series)} series together: use a longer step, or ask for less.",
            max_points=MAX_POINTS_IN_ALL // len(series),
        )
    if (rows := window.rows(series)) > MAX_READ:
        raise WindowTooLong(
            f"{len(series)} series in steps of {window.step.total_seconds():g} s would be read from {rows:.0f} rows, "
            f"which is more than {MAX_READ}: leave out `step` and one is chosen, or ask for less.",
            max_points=MAX_POINTS_IN_ALL // len(series),
        )


def _chosen(series: Sequence[Series], window: Window) -> Window:
    """Return the window with the shortest step that gives few enough points, read from few enough rows.

    Its first step is whole: a part of one would be read from finer and more rows.
    """
    most = max(1, min(CHOSEN_POINTS, CHOSEN_POINTS_IN_ALL // max(1, len(series))))
    length = window.end - window.begin
    for seconds in STEPS:
        step = timedelta(seconds=seconds)
        if length / step <= most:
            whole = window._replace(begin=floor(window.begin, step), step=step)
            if whole.rows(series) <= MAX_READ:
                return whole
    return window._replace(step=max(timedelta(seconds=STEPS[-1]), length))


def _columns(curve: Curve) -> dict[str, Any]:
    known = {name: values for name, values in curve._asdict().items() if values is not None}
    return {**known, "age_seconds": max(0.0, timezone.now().timestamp() - curve.times[-1]) if curve.times else None}
