"""Reading telemetry back: the latest of each series, or a window in steps, from the levels that fit.

A series is a GPU or an assignment on it. Of the seconds only those nodes' frames are read; of roll-ups, few series name
their moments (rows lie by time first), many are picked out of all that lies in the window.
"""

import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.conf import settings
from django.db import connection
from django.db.models import Max

from apps.nodes.models import TelemetryMark
from apps.nodes.models.rolled import WHOLE_GPU
from apps.nodes.services.telemetry.levels import DAY, EPOCH, HOUR, MINUTE, RAW, ROLLED, TENS, Level, Segment, segments

# How far back the latest sample is looked for: an older one says nothing about now.
LATEST_WITHIN = timedelta(hours=1)
# Below this, a search per moment and series is less than reading all rows of the moments.
FEW_SERIES = 40


class Series(NamedTuple):
    """What a curve is of: a GPU (`uid` zero) or an assignment on it, and the node of both."""

    node_id: int
    gpu_id: int
    uid: uuid.UUID = WHOLE_GPU


class Point(NamedTuple):
    """Means over one step. Percent and bytes."""

    at: datetime
    core: float
    core_limit: float | None
    throttled: float | None
    memory: float
    memory_limit: float | None


# `number` is the series' place in the question.
ASKED = """unnest(%(nodes)s::bigint[], %(gpus)s::bigint[], %(uids)s::uuid[]) WITH ORDINALITY
    AS asked (node_id, gpu_id, uid, number)"""
ITEM = """unnest(frame.uids, frame.core, frame.core_limit, frame.throttled, frame.memory, frame.memory_limit)
    AS item (uid, core, core_limit, throttled, memory, memory_limit)"""
GPU = "unnest(frame.gpu_ids, frame.gpu_core, frame.gpu_memory) AS item (gpu_id, core, memory)"
LATEST = f"""
SELECT number - 1, last.* FROM {ASKED} CROSS JOIN LATERAL (
    SELECT at, item.core, item.core_limit, item.throttled, item.memory, item.memory_limit
    FROM nodes_usageframe AS frame, {ITEM}
    WHERE frame.node_id = asked.node_id AND at >= %(begin)s AND at < %(end)s AND item.uid = asked.uid
    ORDER BY at DESC LIMIT 1
) AS last
"""  # noqa: S608 - all names are ours
LATEST_OF_GPU = f"""
SELECT number - 1, last.* FROM {ASKED} CROSS JOIN LATERAL (
    SELECT at, item.core, NULL::real, NULL::real, item.memory, NULL::bigint
    FROM nodes_usageframe AS frame, {GPU}
    WHERE frame.node_id = asked.node_id AND at >= %(begin)s AND at < %(end)s AND item.gpu_id = asked.gpu_id
    ORDER BY at DESC LIMIT 1
) AS last
"""  # noqa: S608 - likewise
SECONDS = f"""
SELECT number, at, 1 AS samples, item.core, item.core_limit, item.throttled, item.memory, item.memory_limit
FROM nodes_usageframe AS frame CROSS JOIN LATERAL {ITEM}
JOIN {ASKED} ON asked.node_id = frame.node_id AND asked.uid = item.uid
WHERE frame.node_id = ANY(%(nodes)s) AND at >= {{begin}} AND at < {{end}}
"""  # noqa: S608 - likewise
SECONDS_OF_GPU = f"""
SELECT number, at, 1 AS samples, item.core, NULL::real, NULL::real, item.memory, NULL::bigint
FROM nodes_usageframe AS frame CROSS JOIN LATERAL {GPU}
JOIN {ASKED} ON asked.gpu_id = item.gpu_id
WHERE frame.node_id = ANY(%(nodes)s) AND at >= {{begin}} AND at < {{end}}
"""  # noqa: S608 - likewise
COLUMNS = "number, used.at, samples, core, core_limit, throttled, memory, memory_limit"
SAME = "used.node_id = asked.node_id AND used.gpu_id = asked.gpu_id AND used.uid = asked.uid"
SPANS_OF_FEW = f"""
SELECT {COLUMNS} FROM {ASKED}
CROSS JOIN generate_series({{begin}}, {{end}} - {{span}}, {{span}}) AS moment
JOIN {{table}} AS used ON used.at = moment AND {SAME}
"""  # noqa: S608 - likewise
SPANS_OF_MANY = f"""
SELECT {COLUMNS} FROM {{table}} AS used JOIN {ASKED} ON {SAME} WHERE used.at >= {{begin}} AND used.at < {{end}}
"""  # noqa: S608 - likewise
WINDOW = """
SELECT number - 1, date_bin(%(step)s, at, %(epoch)s) AS bin, sum(core * samples) / sum(samples),
    sum(core_limit * samples) / nullif(sum(samples) FILTER (WHERE core_limit IS NOT NULL), 0),
    sum(throttled * samples) / nullif(sum(samples) FILTER (WHERE throttled IS NOT NULL), 0),
    sum(memory::float8 * samples) / sum(samples),
    sum(memory_limit::float8 * samples) / nullif(sum(samples) FILTER (WHERE memory_limit IS NOT NULL), 0)
FROM ({parts}) AS part (number, at, samples, core, core_limit, throttled, memory, memory_limit)
GROUP BY 1, 2 ORDER BY 1, 2
"""


def latest(series: Sequence[Series], *, now: datetime) -> list[list[Point]]:
    """For each series its newest sample, or nothing."""
    # A second more: a clock that was set while this is asked.
    asked = {"begin": now - LATEST_WITHIN, "end": now + timedelta(seconds=1), **_named(series)}
    return _answered(series, LATEST_OF_GPU if _of_gpus(series) else LATEST, asked)


def window(
    series: Sequence[Series], *, begin: datetime, end: datetime, step: timedelta, now: datetime
) -> list[list[Point]]:
    """For each series its points: means over steps, at the steps' beginnings. A step without samples has no point."""
    mark = TelemetryMark.objects.filter(name="rolled").aggregate(at=Max("at"))["at"] or EPOCH
    parts = segments(begin, end, _levels(begin, step, now), rolled=mark)
    if not parts or not series:
        return [[] for _ in series]
    asked: dict[str, Any] = {"step": step, "epoch": EPOCH, **_named(series)}
    texts = [_part(series, part, number, asked) for number, part in enumerate(parts)]
    return _answered(series, WINDOW.format(parts=" UNION ALL ".join(texts)), asked)


def _levels(begin: datetime, step: timedelta, now: datetime) -> list[Level]:
    """Those whose spans fit into the step, the finest first. Where the window begins before these: coarser ones."""
    kept = {
        RAW: timedelta(hours=settings.TELEMETRY_RAW_HOURS),
        TENS: timedelta(days=settings.TELEMETRY_TENS_DAYS),
        MINUTE: timedelta(days=settings.TELEMETRY_MINUTES_DAYS),
        HOUR: timedelta(days=settings.TELEMETRY_HOURS_DAYS),
        DAY: timedelta(days=settings.TELEMETRY_HOURS_DAYS),
    }
    fine = [RAW, *(level for level in ROLLED if not step % level.span)]
    reach = [level for level in (RAW, *ROLLED) if begin >= now - kept[level]]
    coarse = [level for level in reach[:1] if level.span > fine[-1].span]
    return [*fine, *coarse]


def _part(series: Sequence[Series], part: Segment, number: int, asked: dict[str, Any]) -> str:
    names = {name: f"%({name}_{number})s" for name in ("begin", "end", "span")}
    asked |= {f"begin_{number}": part.begin, f"end_{number}": part.end, f"span_{number}": part.level.span}
    names = {
        "begin": f"{names['begin']}::timestamptz",
        "end": f"{names['end']}::timestamptz",
        "span": f"{names['span']}::interval",
    }
    if part.level is RAW:
        return (SECONDS_OF_GPU if _of_gpus(series) else SECONDS).format(**names)
    spans = SPANS_OF_FEW if len(series) <= FEW_SERIES else SPANS_OF_MANY
    return spans.format(table=part.level.table, **names)


def _of_gpus(series: Sequence[Series]) -> bool:
    return bool(series) and series[0].uid == WHOLE_GPU


def _named(series: Sequence[Series]) -> dict[str, Any]:
    return {
        "nodes": [one.node_id for one in series],
        "gpus": [one.gpu_id for one in series],
        "uids": [one.uid for one in series],
    }


def _answered(series: Sequence[Series], statement: str, asked: dict[str, Any]) -> list[list[Point]]:
    found: list[list[Point]] = [[] for _ in series]
    with connection.cursor() as cursor:
        cursor.execute(statement, asked)
        for number, *point in cursor.fetchall():
            found[number].append(Point(*point))
    return found
