"""Peaks of assignments in a window, and the measured part of the window.

Read from roll-ups, which keep each span's highest second, and from the raw seconds at the end, which are not rolled up
yet.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import connection
from django.db.models import Max

from apps.nodes.models import TelemetryMark
from apps.nodes.services.telemetry.levels import EPOCH, HOUR, MINUTE, RAW, TENS, Level, floor, segments
from apps.nodes.services.telemetry.reading import ASKED, KEY, Series, parameters

# An hour of tens, a day of minutes, a week of hours: a few hundred rows for each series.
LEVELS = ((timedelta(hours=1), TENS), (timedelta(days=1), MINUTE))
# Roll-ups have no processes: the end is read from raw seconds.
SECONDS_READ = timedelta(seconds=30)

SECONDS = f"""
SELECT asked.gpu_id, asked.uid, 1 AS samples, item.core, item.throttled, item.memory, item.processes
FROM nodes_usageframe AS frame
CROSS JOIN LATERAL unnest(frame.uids, frame.core, frame.throttled, frame.memory, frame.processes)
    AS item (uid, core, throttled, memory, processes)
JOIN {ASKED} ON asked.node_id = frame.node_id AND asked.uid = item.uid
WHERE frame.node_id = ANY(%(nodes)s) AND at >= {{begin}} AND at < {{end}}
"""  # noqa: S608 - all names are ours
SPANS = f"""
SELECT gpu_id, uid, samples, core_most, throttled, memory_most, NULL::int FROM {{table}}
WHERE at >= {{begin}} AND at < {{end}} AND {KEY}
"""  # noqa: S608 - likewise
WHOLE = """
SELECT gpu_id, uid, sum(samples), max(core), coalesce(max(throttled), 0), max(memory), max(processes)
FROM ({parts}) AS part (gpu_id, uid, samples, core, throttled, memory, processes) GROUP BY 1, 2
"""


class Peak(NamedTuple):
    """Highest second of one assignment in a window, and the number of its samples. Percent, bytes."""

    samples: int
    core: float
    # Highest mean of a span.
    throttled: float
    memory: int
    # In the last seconds; None if unknown.
    processes: int | None


NOTHING = Peak(0, 0.0, 0.0, 0, None)


def beginning(seconds: int, *, now: datetime) -> datetime:
    """Return the beginning of a window of so many seconds: up to a span earlier, for whole spans."""
    return floor(now - timedelta(seconds=seconds), _level(timedelta(seconds=seconds)).span)


def peaks(series: Sequence[Series], *, begin: datetime, now: datetime) -> list[Peak]:
    """Return each assignment's peak since `begin`; one query."""
    if not series:
        return []
    mark = TelemetryMark.objects.filter(name="rolled").aggregate(at=Max("at"))["at"] or EPOCH
    coarsest = _level(now - begin)
    levels = [RAW, TENS, MINUTE, HOUR][: 1 + (TENS, MINUTE, HOUR).index(coarsest) + 1]
    # One second more, in case the clock is set during the query.
    end = now + timedelta(seconds=1)
    parts = segments(begin, end, levels, rolled=min(mark, now - SECONDS_READ))
    asked = parameters(series)
    texts = []
    for number, (level, first, last) in enumerate(parts):
        asked |= {f"begin_{number}": first, f"end_{number}": last}
        statement = SECONDS if level is RAW else SPANS
        between = {name: f"%({name}_{number})s::timestamptz" for name in ("begin", "end")}
        texts.append(statement.format(table=level.table, **between))
    with connection.cursor() as cursor:
        cursor.execute(WHOLE.format(parts=" UNION ALL ".join(texts)), asked)
        found = {(gpu_id, uid): Peak(*peak) for gpu_id, uid, *peak in cursor.fetchall()}
    return [found.get((one.gpu_id, one.uid), NOTHING) for one in series]


def _level(length: timedelta) -> Level:
    # A floored window is up to a span longer than requested.
    return next((level for longest, level in LEVELS if length <= longest + level.span), HOUR)
