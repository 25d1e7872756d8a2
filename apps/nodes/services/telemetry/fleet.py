"""Minutes of the whole fleet: summed with the roll-up of minutes, read back in steps."""

from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.utils import timezone

from apps.nodes.models import FleetMinute
from apps.nodes.models.rolled import WHOLE_GPU
from apps.nodes.services.telemetry.levels import EPOCH

MIB = 1 << 20
# A minute is rolled up within seconds of its end; the allocations of an older one are unknown.
FRESH = timedelta(minutes=2)
COLUMNS = ("core_used", "core_leased", "memory_used", "memory_leased")

# Use and allocation are parts of all present GPUs: those that did not report count as unused. A minute of GPUs that are
# gone since is part of those that reported.
SUMS = f"""
INSERT INTO nodes_fleetminute (at, gpus, core_used, memory_used, core_leased, memory_leased)
SELECT used.at, used.gpus, used.core / greatest(used.gpus, present.gpus),
    100 * used.memory / nullif(greatest(used.whole, present.memory), 0), leased.core, leased.memory
FROM (
    SELECT minute.at, count(*), sum(minute.core), coalesce(sum(minute.memory::float8), 0),
        sum(gpu.memory_mib::float8 * {MIB})
    FROM nodes_usageminute AS minute JOIN nodes_gpu AS gpu ON gpu.id = minute.gpu_id
    WHERE minute.at >= %(begin)s AND minute.at < %(end)s AND minute.uid = %(whole)s
    GROUP BY minute.at
) AS used (at, gpus, core, memory, whole)
CROSS JOIN (
    SELECT count(*), coalesce(sum(memory_mib::float8 * {MIB}), 0) FROM nodes_gpu WHERE present
) AS present (gpus, memory)
LEFT JOIN (
    SELECT avg(core_used)::float8, 100 * sum(memory_used_mib)::float8 / nullif(sum(memory_mib), 0)
    FROM nodes_gpu WHERE present
) AS leased (core, memory) ON used.at >= %(fresh)s
ON CONFLICT (at) DO UPDATE SET gpus = excluded.gpus, core_used = excluded.core_used, memory_used = excluded.memory_used
"""  # noqa: S608 - all names are ours
STEPS = f"""
SELECT extract(epoch FROM date_bin(%(step)s, at, %(epoch)s))::float8, {", ".join(f"avg({name})" for name in COLUMNS)}
FROM nodes_fleetminute WHERE at >= %(begin)s GROUP BY 1 ORDER BY 1
"""  # noqa: S608 - likewise


def sum_up(begin: datetime, end: datetime) -> None:
    """Sum up the minutes of this time, again after late frames; the recorded allocations stay."""
    asked: dict[str, Any] = {"begin": begin, "end": end, "whole": WHOLE_GPU, "fresh": timezone.now() - FRESH}
    with connection.cursor() as cursor:
        cursor.execute(SUMS, asked)


def forget(before: datetime) -> None:
    """Delete the minutes before this time."""
    FleetMinute.objects.filter(at__lt=before).delete()


def history(*, begin: datetime, step: timedelta) -> dict[str, list[Any]]:
    """Return means over steps in percent, by `COLUMNS`, with `times` in Unix seconds, of steps with minutes."""
    asked: dict[str, Any] = {"begin": begin, "step": step, "epoch": EPOCH}
    with connection.cursor() as cursor:
        cursor.execute(STEPS, asked)
        rows = cursor.fetchall()
    columns = list(zip(*rows, strict=True)) or [()] * (len(COLUMNS) + 1)
    return {name: list(column) for name, column in zip(("times", *COLUMNS), columns, strict=True)}
