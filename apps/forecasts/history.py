"""The use of claims in windows of five minutes, recorded from the minutes' roll-ups and read as series."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import numpy as np
from django.db import connection, transaction

from apps.forecasts.models import ClaimForecast, UseDay
from apps.forecasts.quantiles import DAY, WINDOW_SECONDS, Band, Series
from apps.nodes.models import TelemetryMark
from apps.nodes.models.rolled import WHOLE_GPU
from apps.nodes.services.telemetry.levels import EPOCH, floor
from apps.nodes.services.telemetry.reading import rolled_until

WINDOW, A_DAY = timedelta(seconds=WINDOW_SECONDS), timedelta(days=1)
MARK = "forecasts"
# What is read for a fit, and what is kept: a month and a week to look back to.
READ_DAYS, KEPT_DAYS = 28, 36
# The past that one run records: a new installation catches up with a month within half an hour.
AT_ONCE = A_DAY
# Less of a window is a gap: the claim began or the node was away.
LEAST_MINUTES = 3

# Among several GPUs, the busiest counts.
RECORDED = """
SELECT assignment.claim_id, date_bin(%(window)s, minute.at, %(epoch)s) AS bin, max(minute.core)
FROM nodes_usageminute AS minute
JOIN scheduling_assignment AS assignment ON assignment.uid = minute.uid
WHERE minute.at >= %(begin)s AND minute.at < %(end)s AND minute.uid <> %(whole)s
GROUP BY 1, 2
HAVING count(DISTINCT minute.at) >= %(least)s
"""

# One window of many claims' days, without writing the rest of each day through the ORM.
WRITTEN = """
UPDATE forecasts_useday AS row SET {name}[%s] = new.value
FROM unnest(%s::bigint[], %s::date[], %s::float8[]) AS new (claim_id, day, value)
WHERE row.claim_id = new.claim_id AND row.day = new.day
"""
# PostgreSQL's binary form of an array without nulls: numpy reads a day at once, psycopg would read number by number.
READ = "SELECT claim_id, day, array_send({name}) FROM forecasts_useday WHERE claim_id = ANY(%s) AND day = ANY(%s)"
HEADER = 20
SENT = np.dtype([("length", ">i4"), ("value", ">f8")])


def record_use() -> tuple[datetime, bool]:
    """Record complete windows; return the end of what is recorded, and True if nothing is left to record.

    The caller holds the lock of forecasts, so that one process at a time writes.
    """
    end = floor(rolled_until(), WINDOW)
    mark = TelemetryMark.objects.filter(name=MARK).first()
    begin = mark.at if mark else max(EPOCH, end - READ_DAYS * A_DAY)
    until = min(end, begin + AT_ONCE)
    if until > begin:
        with transaction.atomic():
            _record(begin, until)
            TelemetryMark.objects.update_or_create(name=MARK, defaults={"at": until})
            ClaimForecast.objects.filter(claim__state="released", at__lt=until - A_DAY).delete()
            UseDay.objects.filter(day__lt=(until - KEPT_DAYS * A_DAY).date()).delete()
    return max(begin, until), until >= end


def _record(begin: datetime, end: datetime) -> None:
    asked: dict[str, Any] = {
        "window": WINDOW, "epoch": EPOCH, "begin": begin, "end": end, "whole": WHOLE_GPU, "least": LEAST_MINUTES,
    }  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(RECORDED, asked)
        rows = cursor.fetchall()
    found: dict[tuple[int, date], dict[int, float]] = defaultdict(dict)
    for claim_id, at, core in rows:
        # A tenant's process can write its usage page: more than a GPU is none.
        found[claim_id, at.date()][window_of_day(at)] = min(max(core, 0.0), 100.0)
    write("used", found)


def write(name: str, values: Mapping[tuple[int, date], Mapping[int, float]]) -> None:
    """Write these windows of claims' days; the others stay."""
    days, claims = {day for _, day in values}, {claim for claim, _ in values}
    rows = UseDay.objects.filter(claim__in=claims, day__in=days)
    known = set(rows.values_list("claim_id", "day"))
    UseDay.objects.bulk_create([_empty(*key) for key in values if key not in known])
    by_window: dict[int, list[tuple[int, date, float]]] = defaultdict(list)
    for (claim, day), windows in values.items():
        for position, value in windows.items():
            by_window[position].append((claim, day, value))
    with connection.cursor() as cursor:
        for position, found in sorted(by_window.items()):
            columns = [list(column) for column in zip(*found, strict=True)]
            cursor.execute(WRITTEN.format(name=name), [position + 1, *columns])


def write_bands(at: datetime, bands: Mapping[int, Band]) -> None:
    """Write the forecast of the window that begins at this moment, by claim."""
    for name in ("expected", "upper"):
        write(name, {(claim, at.date()): {window_of_day(at): getattr(band, name)} for claim, band in bands.items()})


def _empty(claim_id: int, day: date) -> UseDay:
    nothing: list[float | None] = [float("nan")] * DAY
    return UseDay(claim_id=claim_id, day=day, used=nothing, expected=nothing, upper=nothing)


def window_of_day(at: datetime) -> int:
    """Return the position of a moment's window in its day, UTC."""
    return (at.hour * 3600 + at.minute * 60) // WINDOW_SECONDS


def first_window(day: date) -> datetime:
    """Return the begin of a day, UTC."""
    return datetime.combine(day, time(), tzinfo=UTC)


def read_series(
    claims: Collection[int], *, end: datetime, days: int, only: Collection[int] | None = None, name: str = "used"
) -> dict[int, Series]:
    """Return the use by claim up to `end`: whole days before it, and its own. Claims without any are left out.

    `only`: the days to read, as numbers of days before the last one; the others are gaps.
    """
    last = (end - WINDOW).date()
    first = last - days * A_DAY
    wanted = [last - number * A_DAY for number in (range(days + 1) if only is None else only)]
    length = int((end - first_window(first)) / WINDOW)
    found: dict[int, Series] = {}
    with connection.cursor() as cursor:
        cursor.execute(READ.format(name=name), [list(claims), wanted])
        for claim_id, day, sent in cursor:
            series = found.setdefault(claim_id, np.full(length, np.nan))
            begin = (day - first).days * DAY
            part = np.frombuffer(sent, SENT, offset=HEADER)["value"][: length - begin]
            series[begin : begin + len(part)] = part
    return found
