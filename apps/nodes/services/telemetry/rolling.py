"""Roll-up of telemetry: seconds to tens, tens to minutes, minutes to hours, hours to days.

A roll-up is repeatable: rolling a span up again gives the same rows. Writers and roll-ups agree on complete spans as
follows:

1. A run advances the mark `closing`, which waits for writing transactions that have read the old mark.
2. From then on a writer records an older frame as late, in its own transaction.
3. The run rolls up to the mark, level by level.
4. It rolls late minutes up again, and all levels above them.
"""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Min
from django.utils import timezone

from apps.nodes.models import LateFrames, TelemetryMark, UsageFrame
from apps.nodes.services.telemetry import fleet
from apps.nodes.services.telemetry.levels import EPOCH, HOUR, MINUTE, ROLLED, TENS, Level, floor

# Nearly all frames are stored by then.
CLOSED_AFTER = timedelta(seconds=3)
# Span of one transaction: after an hour without a worker there is much to catch up.
AT_ONCE = timedelta(minutes=10)
# Samples come once a second. A longer gap is not usage: the agent was away.
LONGEST_GAP = timedelta(seconds=5)
LOCK = 0x67706375

WRITTEN = (
    "samples", "core", "core_most", "core_limit", "throttled", "memory", "memory_most", "memory_limit", "gpu_time_ms",
    "watts", "celsius_most", "borrowed", "borrowed_most", "memory_out", "memory_out_most", "moved", "stood",
)  # fmt: skip
AGAIN = "ON CONFLICT (at, node_id, gpu_id, uid) DO UPDATE SET " + ", ".join(
    f"{name} = excluded.{name}" for name in WRITTEN
)

# A tenant's process can write the usage page behind an assignment's samples, so they are clamped to the GPU.
SECONDS_TO_TENS = f"""
WITH frame AS MATERIALIZED (
    SELECT *, date_bin(%(span)s, at, %(epoch)s) AS bin,
        least(coalesce(at - lag(at) OVER (PARTITION BY node_id ORDER BY at, seq), interval '0'), %(gap)s) AS gap
    FROM nodes_usageframe
    WHERE at >= %(begin)s - %(gap)s AND at < %(end)s AND (%(nodes)s::bigint[] IS NULL OR node_id = ANY(%(nodes)s))
)
INSERT INTO nodes_usagetens (at, node_id, gpu_id, uid, {", ".join(WRITTEN)})
SELECT bin, node_id, gpu_id, uid, count(*), avg(core), max(core), avg(core_limit), avg(throttled),
    avg(memory::float8), max(memory), max(memory_limit),
    sum(least(greatest(core, 0), 100) * 10 * extract(epoch FROM gap)::float8), avg(watts), max(celsius),
    avg(borrowed::float8), max(borrowed), avg(memory_out::float8), max(memory_out), avg(moved), avg(stood)
FROM (
    SELECT bin, node_id, gap, item.gpu_id, item.uid, item.core, item.core_limit, item.throttled, item.memory,
        item.memory_limit, NULL::real AS watts, NULL::real AS celsius, item.borrowed, item.memory_out, item.moved,
        item.stood
    FROM frame, unnest(uids, on_gpus, frame.core, frame.core_limit, frame.throttled, frame.memory, frame.memory_limit,
            frame.borrowed, frame.memory_out, frame.moved, frame.stood)
        AS item (uid, gpu_id, core, core_limit, throttled, memory, memory_limit, borrowed, memory_out, moved, stood)
    WHERE at >= %(begin)s
    UNION ALL
    SELECT bin, node_id, gap, gpu.id, '00000000-0000-0000-0000-000000000000', gpu.core, NULL, NULL, gpu.memory,
        NULL, gpu.watts, gpu.celsius, gpu.borrowed, NULL, NULL, NULL
    FROM frame, unnest(gpu_ids, gpu_core, gpu_memory, gpu_watts, gpu_celsius, gpu_borrowed)
        AS gpu (id, core, memory, watts, celsius, borrowed)
    WHERE at >= %(begin)s
) AS sample
WHERE gpu_id IS NOT NULL
GROUP BY bin, node_id, gpu_id, uid
{AGAIN}
"""  # noqa: S608 - all names are ours
UP = f"""
INSERT INTO {{upper}} (at, node_id, gpu_id, uid, {", ".join(WRITTEN)})
SELECT date_bin(%(span)s, at, %(epoch)s), node_id, gpu_id, uid, sum(samples), sum(core * samples) / sum(samples),
    max(core_most), sum(core_limit * samples) / nullif(sum(samples) FILTER (WHERE core_limit IS NOT NULL), 0),
    sum(throttled * samples) / nullif(sum(samples) FILTER (WHERE throttled IS NOT NULL), 0),
    sum(memory::float8 * samples) / sum(samples), max(memory_most), max(memory_limit), sum(gpu_time_ms),
    sum(watts * samples) / nullif(sum(samples) FILTER (WHERE watts IS NOT NULL), 0), max(celsius_most),
    sum(borrowed::float8 * samples) / nullif(sum(samples) FILTER (WHERE borrowed IS NOT NULL), 0), max(borrowed_most),
    sum(memory_out::float8 * samples) / nullif(sum(samples) FILTER (WHERE memory_out IS NOT NULL), 0),
    max(memory_out_most), sum(moved * samples) / nullif(sum(samples) FILTER (WHERE moved IS NOT NULL), 0),
    sum(stood * samples) / nullif(sum(samples) FILTER (WHERE stood IS NOT NULL), 0)
FROM {{lower}}
WHERE at >= %(begin)s AND at < %(end)s AND (%(nodes)s::bigint[] IS NULL OR node_id = ANY(%(nodes)s))
GROUP BY 1, 2, 3, 4
{AGAIN}
"""  # noqa: S608 - likewise


def roll_up() -> int:
    """Bring every level up to date; return the number of rows written. May run twice, and concurrently."""
    now = timezone.now()
    closing = _close(now)
    written = 0
    while (rows := _roll_on(closing)) is not None:
        written += rows
    return written + _roll_late_again(now)


def _close(now: datetime) -> datetime:
    closing = floor(now - CLOSED_AFTER, TENS.span)
    with transaction.atomic():
        mark, _ = TelemetryMark.objects.get_or_create(name="closing", defaults={"at": closing})
        # Waits for writers, which hold the row FOR SHARE.
        TelemetryMark.objects.filter(name="closing", at__lt=closing).update(at=closing)
    return max(mark.at, closing)


@transaction.atomic
def _roll_on(closing: datetime) -> int | None:
    """Roll up one transaction's span; return None once nothing is left."""
    if not _try_lock():
        return None
    mark = TelemetryMark.objects.filter(name="rolled").first()
    begin = mark.at if mark else _first(closing)
    end = min(closing, begin + AT_ONCE)
    if begin >= end:
        return None
    rows = _roll(begin, end, rolled=end)
    TelemetryMark.objects.update_or_create(name="rolled", defaults={"at": end})
    return rows


def _try_lock() -> bool:
    """Try to lock the roll-ups for this transaction: a second concurrent run leaves the work to the first."""
    with connection.cursor() as cursor:
        # Fits the frames of ten seconds of a thousand nodes.
        cursor.execute("SET LOCAL work_mem = '64MB'")
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [LOCK])
        (got,) = cursor.fetchone() or (False,)
        return bool(got)


def _first(closing: datetime) -> datetime:
    kept = closing - timedelta(hours=settings.TELEMETRY_RAW_HOURS)
    oldest = UsageFrame.objects.filter(at__gte=kept).aggregate(at=Min("at"))["at"]
    return floor(oldest, TENS.span) if oldest else closing


def _roll(begin: datetime, end: datetime, *, rolled: datetime, nodes: Sequence[int] | None = None) -> int:
    """Roll up the tens of this time, and of each higher level the spans that it completes or changes."""
    rows = _write(SECONDS_TO_TENS, TENS, begin, end, nodes)
    for lower, upper in pairwise(ROLLED):
        first, last = floor(begin, upper.span), min(_after(end, upper, nodes), floor(rolled, upper.span))
        if first >= last:
            break
        rows += _write(UP.format(upper=upper.table, lower=lower.table), upper, first, last, nodes)
        if upper is MINUTE:
            fleet.sum_up(first, last)
    return rows


def _after(end: datetime, level: Level, nodes: Sequence[int] | None) -> datetime:
    """Return the end of the spans to roll up: whole spans for new seconds, also the last span for late ones."""
    begun = floor(end, level.span)
    return begun if nodes is None or begun == end else begun + level.span


def _write(statement: str, level: Level, begin: datetime, end: datetime, nodes: Sequence[int] | None) -> int:
    asked: dict[str, Any] = {
        "span": level.span, "epoch": EPOCH, "begin": begin, "end": end, "gap": LONGEST_GAP,
        "nodes": None if nodes is None else list(nodes),
    }  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(statement, asked)
        return int(cursor.rowcount)


@transaction.atomic
def _roll_late_again(now: datetime) -> int:
    if not _try_lock() or not (mark := TelemetryMark.objects.filter(name="rolled").first()):
        return 0
    found = list(LateFrames.objects.filter(minute__lt=mark.at).values_list("pk", "node_id", "minute"))
    # An hour with expired seconds would be rolled up from the rest alone, so it is left out.
    oldest = now - timedelta(hours=settings.TELEMETRY_RAW_HOURS) + HOUR.span
    by_hour: dict[datetime, list[tuple[int, datetime]]] = defaultdict(list)
    for _, node_id, minute in found:
        if minute >= oldest:
            by_hour[floor(minute, HOUR.span)].append((node_id, minute))
    rows = 0
    for some in by_hour.values():
        nodes, minutes = sorted({node_id for node_id, _ in some}), [minute for _, minute in some]
        end = min(max(minutes) + MINUTE.span, mark.at)
        rows += _roll(min(minutes), end, rolled=mark.at, nodes=nodes)
    LateFrames.objects.filter(pk__in=[pk for pk, *_ in found]).delete()
    return rows
