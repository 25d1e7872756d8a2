"""The past use of pools whose fair share remembers: a row for each tenant, brought forward to a moment.

Each run adds the time since the mark of the pool and moves the mark, in one transaction that holds the mark's row: of
two runs at once the second finds nothing left, and a run that is killed has done nothing. All the past is counted again
from the ledger once a day, and when the half-life changes, so that no error lasts.
"""

from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import F
from django.utils import timezone

from apps.accounting.services.allocated import HELD
from apps.nodes.services.telemetry.levels import EPOCH
from apps.quotas.models import Pool, Resource
from apps.quotas.models.pool import FairShare
from apps.scheduling.core.fair_share import Past, decay
from apps.scheduling.models import PastUse, PastUseMark
from apps.scheduling.services.failures import each

# A transaction whose rows have an earlier time may commit so much later.
SETTLED = timedelta(seconds=30)
RECOUNT = timedelta(days=1)
# What is older has a weight of less than a millionth.
HALF_LIVES = 20

# The weight of an interval is that of `core.fair_share.weight_of`.
AVERAGES = f"""{HELD},
added AS (
    SELECT held.tenant_id, held.resource, sum(held.amount * (
        power(2::float8, extract(epoch FROM upper(held.during) - %(end)s)::float8 / %(half_life)s::float8)
        - power(2::float8, extract(epoch FROM lower(held.during) - %(end)s)::float8 / %(half_life)s::float8)
    )) AS amount
    FROM held
    WHERE NOT isempty(held.during)
    GROUP BY 1, 2
)
SELECT %(pool)s::bigint, tenant_id,
    coalesce(sum(amount) FILTER (WHERE resource = 'core_percent'), 0)::float8,
    coalesce(sum(amount) FILTER (WHERE resource = 'memory_mib'), 0)::float8
FROM added GROUP BY tenant_id ORDER BY tenant_id
"""  # noqa: S608 - our own words
ADD = f"""
INSERT INTO scheduling_pastuse AS past (pool_id, tenant_id, core_percent, memory_mib)
{AVERAGES}
ON CONFLICT (pool_id, tenant_id) DO UPDATE SET core_percent = past.core_percent + excluded.core_percent,
    memory_mib = past.memory_mib + excluded.memory_mib
"""


def settle_all() -> int:
    """Bring the past use of all pools that count it up to now; return the number of pools."""
    return each(Pool.objects.filter(fair_share=FairShare.DECAYED).order_by("pk"), _settle_one)


def _settle_one(pool: Pool) -> bool:
    return settle(pool) > 0


@transaction.atomic
def settle(pool: Pool, *, now: datetime | None = None) -> int:
    """Bring the past use of one pool up to half a minute ago; return the number of tenants of whom something counts."""
    end = (now or timezone.now()) - SETTLED
    half_life = Pool.objects.values_list("half_life_seconds", flat=True).get(pk=pool.pk)
    mark = lock_mark(pool, half_life)
    # A clock that ran ahead left a mark in the future.
    is_ahead = mark.at > end + RECOUNT
    if mark.half_life_seconds != half_life or mark.counted_at <= end - RECOUNT or is_ahead:
        PastUse.objects.filter(pool=pool).delete()
        mark.half_life_seconds, mark.counted_at = half_life, end
        mark.at = end - timedelta(seconds=HALF_LIVES * half_life)
    if end <= mark.at:
        return 0
    kept = decay((end - mark.at).total_seconds(), half_life)
    PastUse.objects.filter(pool=pool).update(core_percent=F("core_percent") * kept, memory_mib=F("memory_mib") * kept)
    written = add(pool, begin=mark.at, end=end, half_life=half_life)
    mark.at = end
    mark.save()
    return written


def lock_mark(pool: Pool, half_life: int) -> PastUseMark:
    """Return the pool's mark, locked until the end of the transaction; a new one is long past."""
    unset = {"half_life_seconds": half_life, "at": EPOCH, "counted_at": EPOCH}
    PastUseMark.objects.get_or_create(pool=pool, defaults=unset)
    return PastUseMark.objects.select_for_update().get(pool=pool)


def add(pool: Pool, *, begin: datetime, end: datetime, half_life: int) -> int:
    """Add the use between two moments to rows that are of the later one; return the number of tenants."""
    with connection.cursor() as cursor:
        cursor.execute(ADD, _asked(pool, begin=begin, end=end, half_life=half_life))
        return int(cursor.rowcount)


def read_at(pool: Pool, moment: datetime, *, half_life: int) -> dict[int, Past]:
    """Return what each tenant, by key, held of the pool on average at a moment of the past; writes nothing."""
    begin = moment - timedelta(seconds=HALF_LIVES * half_life)
    with connection.cursor() as cursor:
        cursor.execute(AVERAGES, _asked(pool, begin=begin, end=moment, half_life=half_life))
        return {tenant: Past(core, memory) for _, tenant, core, memory in cursor.fetchall()}


def _asked(pool: Pool, *, begin: datetime, end: datetime, half_life: int) -> dict[str, Any]:
    resources = [Resource.CORE_PERCENT.value, Resource.MEMORY_MIB.value]
    return {"pool": pool.pk, "begin": begin, "end": end, "half_life": half_life, "resources": resources}
