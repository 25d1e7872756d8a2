"""Reading of telemetry: the latest sample of each series, or a window in steps, from the fitting levels.

A series is a GPU or an assignment on it. Raw seconds are read from those nodes' frames only. Roll-up rows of the window
are found by the key (time, node, GPU, assignment): in each moment the index skips to the requested ones.
"""

import uuid
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.conf import settings
from django.db import connection
from django.db.models import Max
from django.utils import timezone

from apps.nodes.models import TelemetryMark
from apps.nodes.models.rolled import WHOLE_GPU
from apps.nodes.services.telemetry.levels import DAY, EPOCH, HOUR, MINUTE, RAW, ROLLED, TENS, Level, Segment, segments

MIB = 1 << 20
SECOND = timedelta(seconds=1)
# Search limit of the latest sample: an older one says nothing about now.
LATEST_WITHIN = timedelta(hours=1)


class Series(NamedTuple):
    """Key of a curve: a GPU (`uid` zero) or an assignment on it, with their node."""

    node_id: int
    gpu_id: int
    uid: uuid.UUID = WHOLE_GPU


class Curve(NamedTuple):
    """Means over steps: lists of one length. Unix seconds, percent, MiB; watts of a GPU, None for an assignment.

    Borrowed memory: None in whole unless the assignment borrowed memory, or others borrowed of the GPU.
    """

    times: list[float]
    core_percent: list[float]
    core_limit_percent: list[float | None]
    throttled_percent: list[float | None]
    memory_mib: list[float]
    memory_limit_mib: list[float | None]
    power_watts: list[float | None] | None
    # On the GPU beyond what is promised; of a GPU, by all its assignments.
    borrowed_mib: list[float | None] | None = None
    # Of an assignment: in host memory; moved both ways; the time for which its programs stood still meanwhile.
    memory_out_mib: list[float | None] | None = None
    moved_mib_per_second: list[float | None] | None = None
    stood_percent: list[float | None] | None = None


# The requested series, matched by GPU and uid.
ASKED = "unnest(%(nodes)s::bigint[], %(gpus)s::bigint[], %(uids)s::uuid[]) AS asked (node_id, gpu_id, uid)"
ITEM = """unnest(frame.uids, frame.core, frame.core_limit, frame.throttled, frame.memory, frame.memory_limit,
        frame.borrowed, frame.memory_out, frame.moved, frame.stood)
    AS item (uid, core, core_limit, throttled, memory, memory_limit, borrowed, memory_out, moved, stood)"""
GPU = """unnest(frame.gpu_ids, frame.gpu_core, frame.gpu_memory, frame.gpu_watts, frame.gpu_borrowed)
    AS item (gpu_id, core, memory, watts, borrowed)"""
# The columns after `at` of each statement: one list, since they are united by position.
VALUES = "core, core_limit, throttled, memory, memory_limit, watts, borrowed, memory_out, moved, stood"
OF_ITEM = """item.core, item.core_limit, item.throttled, item.memory, item.memory_limit, NULL::real, item.borrowed,
    item.memory_out, item.moved, item.stood"""
OF_GPU = """item.core, NULL::real, NULL::real, item.memory, NULL::bigint, item.watts, item.borrowed, NULL::bigint,
    NULL::real, NULL::real"""
LATEST = f"""
SELECT asked.gpu_id, asked.uid, last.* FROM {ASKED} CROSS JOIN LATERAL (
    SELECT at, {OF_ITEM}
    FROM nodes_usageframe AS frame, {ITEM}
    WHERE frame.node_id = asked.node_id AND at >= %(begin)s AND at < %(end)s AND item.uid = asked.uid
    ORDER BY at DESC LIMIT 1
) AS last
"""  # noqa: S608 - all names are ours
LATEST_OF_GPU = f"""
SELECT asked.gpu_id, asked.uid, last.* FROM {ASKED} CROSS JOIN LATERAL (
    SELECT at, {OF_GPU}
    FROM nodes_usageframe AS frame, {GPU}
    WHERE frame.node_id = asked.node_id AND at >= %(begin)s AND at < %(end)s AND item.gpu_id = asked.gpu_id
    ORDER BY at DESC LIMIT 1
) AS last
"""  # noqa: S608 - likewise
SECONDS = f"""
SELECT asked.gpu_id, asked.uid, at, 1 AS samples, {OF_ITEM}
FROM nodes_usageframe AS frame CROSS JOIN LATERAL {ITEM}
JOIN {ASKED} ON asked.node_id = frame.node_id AND asked.uid = item.uid
WHERE frame.node_id = ANY(%(nodes)s) AND at >= {{begin}} AND at < {{end}}
"""  # noqa: S608 - likewise
SECONDS_OF_GPU = f"""
SELECT asked.gpu_id, asked.uid, at, 1 AS samples, {OF_GPU}
FROM nodes_usageframe AS frame CROSS JOIN LATERAL {GPU}
JOIN {ASKED} ON asked.gpu_id = item.gpu_id
WHERE frame.node_id = ANY(%(nodes)s) AND at >= {{begin}} AND at < {{end}}
"""  # noqa: S608 - likewise
PRESENT = "unnest(frame.gpu_ids, frame.gpu_core, frame.gpu_memory) AS item (gpu_id, core, memory)"
# The last seconds before each node's newest sample, shown as the present.
NOW_OF_GPU = f"""
SELECT item.gpu_id, avg(item.core), avg(item.memory) / {MIB} FROM (
    SELECT *, max(at) OVER (PARTITION BY node_id) AS newest FROM nodes_usageframe
    WHERE node_id = ANY(%(nodes)s::bigint[]) AND at >= %(begin)s
) AS frame CROSS JOIN LATERAL {PRESENT} WHERE at > newest - %(mean)s GROUP BY item.gpu_id
"""  # noqa: S608 - likewise
# The same, summed up by pool: of the newest frame of each node alone, since 2,000 nodes send 10,000 frames in a mean.
NOW_OF_POOL = f"""
SELECT node.pool_id, count(*), sum(item.core), sum(item.memory) / {MIB} FROM nodes_node AS node
CROSS JOIN LATERAL (
    SELECT gpu_ids, gpu_core, gpu_memory FROM nodes_usageframe
    WHERE node_id = node.id AND at >= %(begin)s AND at < %(end)s ORDER BY at DESC LIMIT 1
) AS frame CROSS JOIN LATERAL {PRESENT} GROUP BY node.pool_id
"""  # noqa: S608 - likewise
# Names the whole key without a join: a planner that expects one row would join by loops.
KEY = """node_id = ANY(%(every_node)s::bigint[]) AND gpu_id = ANY(%(every_gpu)s::bigint[])
    AND uid = ANY(%(every_uid)s::uuid[])"""
SPANS = f"""
SELECT gpu_id, uid, at, samples, {VALUES} FROM {{table}}
WHERE at >= {{begin}} AND at < {{end}} AND {KEY}
"""  # noqa: S608 - likewise


def _mean_of(name: str) -> str:
    """Return the mean of a column that can be null, over the samples that have it."""
    return f"sum({name}::float8 * samples) / nullif(sum(samples) FILTER (WHERE {name} IS NOT NULL), 0)"


def _if_any(name: str, unit: int) -> str:
    """Return the values of a column that nearly every series has not; null for those."""
    return f"CASE WHEN count({name}) > 0 THEN array_agg(({name}::float8 / {unit})::real ORDER BY at) END"


WINDOW = f"""
SELECT gpu_id, uid, date_bin(%(step)s, at, %(epoch)s), sum(core * samples) / sum(samples),
    {_mean_of("core_limit")}, {_mean_of("throttled")}, sum(memory::float8 * samples) / sum(samples),
    {", ".join(_mean_of(name) for name in ("memory_limit", "watts", "borrowed", "memory_out", "moved", "stood"))}
FROM ({{parts}}) AS part (gpu_id, uid, at, samples, {VALUES})
GROUP BY 1, 2, 3
"""  # noqa: S608 - likewise
MOVING = (("borrowed", MIB), ("memory_out", MIB), ("moved", MIB), ("stood", 1))
# A row for each series, an array for each quantity: building a row for each point would cost more than the query.
# Seven digits exceed the precision of any measurement, and halve the text.
CURVES = f"""
SELECT gpu_id, uid, array_agg(extract(epoch FROM at)::float8 ORDER BY at), array_agg(core::real ORDER BY at),
    array_agg(core_limit::real ORDER BY at), array_agg(throttled::real ORDER BY at),
    array_agg((memory::float8 / {MIB})::real ORDER BY at), array_agg((memory_limit::float8 / {MIB})::real ORDER BY at),
    {{watts}},
    {", ".join(_if_any(*column) for column in MOVING)}
FROM ({{points}}) AS point (gpu_id, uid, at, {VALUES})
GROUP BY gpu_id, uid
"""  # noqa: S608 - likewise
# Of GPUs only: assignments have no power of their own.
WATTS = "array_agg(watts::real ORDER BY at)"


def latest(series: Sequence[Series], *, now: datetime) -> list[Curve]:
    """Return the newest sample of each series, or an empty curve."""
    # One second more, in case the clock is set during the query.
    asked = {"begin": now - LATEST_WITHIN, "end": now + timedelta(seconds=1), **parameters(series)}
    return _read_curves(series, LATEST_OF_GPU if _of_gpus(series) else LATEST, asked)


def now_of_gpus(nodes: Collection[int], *, since: datetime, mean: timedelta) -> dict[int, tuple[float, float]]:
    """Return percent and MiB by GPU of these nodes (primary keys): means over `mean` before the newest sample.

    A node whose newest sample is before `since` is left out.
    """
    said: dict[str, Any] = {"nodes": list(nodes), "begin": since, "mean": mean}
    with connection.cursor() as cursor:
        cursor.execute(NOW_OF_GPU, said)
        return {gpu_id: (core, float(memory)) for gpu_id, core, memory in cursor.fetchall()}


class PoolUse(NamedTuple):
    """The measured GPUs of a pool: their number, the sum of their percents, and the sum of their MiB."""

    gpus: int
    core_percent: float
    memory_mib: float


def now_of_pools(*, since: datetime) -> dict[int, PoolUse]:
    """Return the present use by pool (primary key), of nodes with a sample after `since`."""
    with connection.cursor() as cursor:
        # The end leaves out the partitions of the coming hours, which would be searched for each node.
        cursor.execute(NOW_OF_POOL, {"begin": since, "end": timezone.now() + timedelta(minutes=1)})
        return {pool: PoolUse(gpus, core, float(memory)) for pool, gpus, core, memory in cursor.fetchall()}


class Window(NamedTuple):
    """A window of means over steps, which begin at whole multiples of their length."""

    begin: datetime
    end: datetime
    step: timedelta
    # Determine the retained levels and their progress.
    now: datetime
    rolled: datetime

    def parts(self) -> list[Segment]:
        """Return the segments to read, with their levels."""
        return segments(self.begin, self.end, _levels(self.begin, self.step, self.now), rolled=self.rolled)

    def rows(self, series: Sequence[Series]) -> float:
        """Return an upper bound of the rows to read: of roll-ups, and frames."""
        nodes = len({one.node_id for one in series})
        return sum(
            (part.end - part.begin) / (part.level.span or SECOND) * (nodes if part.level is RAW else len(series))
            for part in self.parts()
        )


def rolled_until() -> datetime:
    """Return the end of the roll-ups."""
    return TelemetryMark.objects.filter(name="rolled").aggregate(at=Max("at"))["at"] or EPOCH


def window(series: Sequence[Series], asked_for: Window) -> list[Curve]:
    """Return the points of each series; a step without samples has none."""
    parts = asked_for.parts()
    if not parts or not series:
        return [_nothing(one) for one in series]
    asked: dict[str, Any] = {"step": asked_for.step, "epoch": EPOCH, **parameters(series)}
    texts = [_part(series, part, number, asked) for number, part in enumerate(parts)]
    return _read_curves(series, WINDOW.format(parts=" UNION ALL ".join(texts)), asked)


def _levels(begin: datetime, step: timedelta, now: datetime) -> list[Level]:
    """Return the levels whose spans divide the step, the finest first; a coarser one if the window begins earlier."""
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
    asked |= {f"begin_{number}": part.begin, f"end_{number}": part.end}
    between = {name: f"%({name}_{number})s::timestamptz" for name in ("begin", "end")}
    if part.level is RAW:
        return (SECONDS_OF_GPU if _of_gpus(series) else SECONDS).format(**between)
    return SPANS.format(table=part.level.table, **between)


def _of_gpus(series: Sequence[Series]) -> bool:
    return bool(series) and series[0].uid == WHOLE_GPU


def parameters(series: Sequence[Series]) -> dict[str, Any]:
    """Return the parameters of `ASKED` and `KEY`."""
    return {
        "nodes": [one.node_id for one in series],
        "gpus": [one.gpu_id for one in series],
        "uids": [one.uid for one in series],
        "every_node": sorted({one.node_id for one in series}),
        "every_gpu": sorted({one.gpu_id for one in series}),
        "every_uid": sorted({one.uid for one in series}),
    }


def _read_curves(series: Sequence[Series], points: str, asked: dict[str, Any]) -> list[Curve]:
    watts = WATTS if _of_gpus(series) else "NULL"
    with connection.cursor() as cursor:
        cursor.execute(CURVES.format(points=points, watts=watts), asked)
        found = {(gpu_id, uid): Curve(*curve) for gpu_id, uid, *curve in cursor.fetchall()}
    return [found.get((one.gpu_id, one.uid)) or _nothing(one) for one in series]


def _nothing(series: Series) -> Curve:
    return Curve([], [], [], [], [], [], [] if series.uid == WHOLE_GPU else None)
