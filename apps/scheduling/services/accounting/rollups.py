"""Rolling samples up to hours, before they are dropped.

A sample says which share of the GPU was used since the one before it, so each counts for that time. Counting again
gives the same hours again: a task that runs twice, or late, changes nothing.
"""

from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.utils import timezone

from apps.scheduling.models import UsedHour

HOUR = timedelta(hours=1)
# Samples are kept for a day; an hour of which some may be gone already must not be counted anew.
COUNTABLE = timedelta(hours=23)
# An agent that was away sends what it kept; frames that come later than this are not counted.
LATE = timedelta(hours=2)
# Samples come once a second. A longer silence is no use: the agent was away.
LONGEST_GAP = timedelta(seconds=5)

# The account is libvcuda's, whose page a tenant's process can write: no assignment uses more than its GPU.
COUNT = """
SELECT claim.tenant_id, claim.pool_id, gpu.model, date_trunc('hour', sample.at, 'UTC') AS hour,
       round(sum(least(greatest(sample.core_percent, 0), 100) * 10
                 * extract(epoch FROM least(coalesce(sample.gap, interval '0'), %(gap)s))))::bigint AS gpu_time_ms
FROM (SELECT assignment_uid, at, core_percent, at - lag(at) OVER (PARTITION BY assignment_uid ORDER BY at) AS gap
      FROM nodes_sample WHERE gpu_id IS NULL AND at >= %(before)s) AS sample
JOIN scheduling_assignment AS assignment ON assignment.uid = sample.assignment_uid
JOIN scheduling_claim AS claim ON claim.id = assignment.claim_id
JOIN nodes_gpu AS gpu ON gpu.id = assignment.gpu_id
WHERE sample.at >= %(begin)s
GROUP BY 1, 2, 3, 4
ORDER BY 1, 2, 3, 4
"""


@transaction.atomic
def roll_up() -> int:
    """Count the hours that may still change, the present one too; returns how many rows were written.

    It begins two hours before the last hour that it knows, and as far back as samples reach where it knows none: what
    was missed while no worker ran is made up for.
    """
    begin = _begin(timezone.now())
    rows = [UsedHour(**row) for row in _counted(begin)]
    UsedHour.objects.bulk_create(
        rows,
        update_conflicts=True,
        unique_fields=["tenant", "pool", "gpu_model", "hour"],
        update_fields=["gpu_time_ms"],
    )
    return len(rows)


def _begin(now: datetime) -> datetime:
    oldest = (now - COUNTABLE).replace(minute=0, second=0, microsecond=0) + HOUR
    last = UsedHour.objects.order_by("-hour").values_list("hour", flat=True).first()
    return oldest if last is None else max(oldest, last - LATE)


def _counted(begin: datetime) -> list[dict[str, Any]]:
    names = ("tenant_id", "pool_id", "gpu_model", "hour", "gpu_time_ms")
    asked: dict[str, Any] = {"begin": begin, "before": begin - LONGEST_GAP, "gap": LONGEST_GAP}
    with connection.cursor() as cursor:
        cursor.execute(COUNT, asked)
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
