"""Roll-up of used hours from telemetry's minutes, stored when those are dropped.

Counting again gives the same hours again: a task that runs twice, or late, changes nothing.
"""

from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.utils import timezone

from apps.scheduling.models import UsedHour

HOUR = timedelta(hours=1)
# Minutes are stored for a day at least; an hour of which some may be gone already must not be counted anew.
COUNTABLE = timedelta(hours=23)
# An agent that was away sends what it stored; frames that come later than this are not counted.
LATE = timedelta(hours=2)
COUNT = """
SELECT claim.tenant_id, claim.pool_id, gpu.model, date_trunc('hour', used.at, 'UTC') AS hour,
       round(sum(used.gpu_time_ms))::bigint AS gpu_time_ms
FROM nodes_usageminute AS used
JOIN scheduling_assignment AS assignment ON assignment.uid = used.uid
JOIN scheduling_claim AS claim ON claim.id = assignment.claim_id
JOIN nodes_gpu AS gpu ON gpu.id = assignment.gpu_id
WHERE used.at >= %(begin)s
GROUP BY 1, 2, 3, 4
ORDER BY 1, 2, 3, 4
"""


@transaction.atomic
def roll_up() -> int:
    """Count the hours that may still change, the present one too; return the number of rows written.

    It begins two hours before the last hour stored, or as far back as samples reach if there is none: hours missed
    while no worker ran are made up for.
    """
    begin = _begin(timezone.now())
    rows = [UsedHour(**row) for row in _count(begin)]
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


def _count(begin: datetime) -> list[dict[str, Any]]:
    names = ("tenant_id", "pool_id", "gpu_model", "hour", "gpu_time_ms")
    with connection.cursor() as cursor:
        cursor.execute(COUNT, {"begin": begin})
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
