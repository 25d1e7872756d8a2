"""Roll-up of allocated and used GPU time: by claim, for each hour of the last two days and for each day.

The ledger says how much was allocated from which moment on, assignments say when a claim was on GPUs, telemetry says
what its programs used. Counting again gives the same rows again: a task that runs twice, or late, changes nothing.
"""

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Max
from django.utils import timezone

from apps.accounting.services.allocated import HELD
from apps.nodes.models import TelemetryMark
from apps.nodes.services.telemetry.levels import DAY, EPOCH, HOUR, Level, floor
from apps.quotas.models import Resource
from apps.scheduling.models import AllocatedDay, AllocatedHour

# An agent that was away sends what it stored; frames that come later than this are not counted.
LATE = timedelta(hours=2)
HOURS_KEPT = timedelta(hours=48)
# The first run counts so much of the past.
FIRST = timedelta(days=31)

HOURS, DAYS = "scheduling_allocatedhour", "scheduling_allocatedday"
# The moment of the last count.
MARK = "allocated"

COUNT = f"""{HELD},
reserved AS (
    SELECT bin.at, held.uid, sum(10 * held.amount * extract(epoch FROM
        least(upper(held.during), bin.at + %(span)s) - greatest(lower(held.during), bin.at))) AS ms
    FROM held CROSS JOIN LATERAL generate_series(
        date_bin(%(span)s, lower(held.during), %(epoch)s), upper(held.during) - interval '1 microsecond', %(span)s
    ) AS bin (at)
    WHERE NOT isempty(held.during)
    GROUP BY bin.at, held.uid
),
used AS (
    SELECT date_bin(%(span)s, measured.at, %(epoch)s) AS at, holder.uid, sum(measured.gpu_time_ms) AS ms
    FROM (
        SELECT at, uid, gpu_time_ms FROM nodes_usagehour WHERE at >= %(begin)s AND at < least(%(end)s, %(hour)s)
        UNION ALL
        SELECT at, uid, gpu_time_ms FROM nodes_usageminute WHERE at >= greatest(%(begin)s, %(hour)s) AND at < %(end)s
    ) AS measured
    JOIN scheduling_assignment AS assignment ON assignment.uid = measured.uid
    JOIN holder ON holder.id = assignment.claim_id
    GROUP BY 1, 2
)
INSERT INTO {{table}} (at, uid, tenant_id, pool_id, owner, reserved_ms, used_ms)
SELECT at, uid, whose.tenant_id, whose.pool_id, whose.created_by,
    round(coalesce(reserved.ms, 0)), round(coalesce(used.ms, 0)::numeric)
FROM reserved FULL JOIN used USING (at, uid) JOIN (
    SELECT uid, tenant_id, pool_id, created_by FROM holder
    UNION ALL SELECT uid, tenant_id, pool_id, created_by FROM booking
) AS whose USING (uid)
ON CONFLICT (at, uid) DO UPDATE SET reserved_ms = excluded.reserved_ms, used_ms = excluded.used_ms
"""  # noqa: S608 - our own words


def roll_up() -> int:
    """Count what may have changed since the last run, the present span too; return the number of rows written."""
    now = timezone.now()
    last = AllocatedDay.objects.aggregate(at=Max("at"))["at"]
    first = floor(now - FIRST, DAY.span) if last is None else floor(min(last + DAY.span, now) - LATE, DAY.span)
    written = 0
    while first < now:
        written += _count(DAYS, DAY, first, min(first + DAY.span, now))
        first += DAY.span
    last = AllocatedHour.objects.aggregate(at=Max("at"))["at"]
    oldest = floor(now - HOURS_KEPT, HOUR.span)
    begin = oldest if last is None else max(oldest, floor(last, HOUR.span) - LATE)
    written += _count(HOURS, HOUR, begin, now)
    AllocatedHour.objects.filter(at__lt=oldest).delete()
    AllocatedDay.objects.filter(at__lt=now - timedelta(days=settings.TELEMETRY_HOURS_DAYS)).delete()
    TelemetryMark.objects.update_or_create(name=MARK, defaults={"at": now})
    return written


@transaction.atomic
def _count(table: str, level: Level, begin: datetime, end: datetime) -> int:
    rolled = TelemetryMark.objects.filter(name="rolled").values_list("at", flat=True).first()
    asked: dict[str, Any] = {"begin": begin, "end": end, "span": level.span, "epoch": EPOCH, "pool": None}
    asked["resources"] = [Resource.CORE_PERCENT.value]
    # Hours are rolled up once they are complete, so the present one is counted by its minutes.
    asked["hour"] = floor(rolled or end, HOUR.span)
    with connection.cursor() as cursor:
        cursor.execute(COUNT.format(table=table), asked)
        return int(cursor.rowcount)
