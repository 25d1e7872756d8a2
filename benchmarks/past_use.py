"""`make bench-past-use`: what the past use of a pool costs each half minute, over a long history of claims.

Each row counts the same half minute of the same pool again and again, each time in a transaction that is undone: over
the whole history, and over a hundredth of it. The claims that are held at that time are the same.
"""

import argparse
import time
from datetime import timedelta
from typing import Any

from benchmarks.own_services import own_services
from benchmarks.report import Row, print_report, spread_ms

PERIOD = timedelta(seconds=30)
# The history becomes claims of 20 minutes each, one after the other, with the charges of their beginning and end.
SPREAD = """
UPDATE scheduling_claim AS claim SET created_at = moment.at, released_at = moment.at + interval '20 minutes'
FROM (SELECT id, now() - interval '1 minute' - %(period)s * (row_number() OVER (ORDER BY id DESC)) / %(count)s AS at
    FROM scheduling_claim WHERE state = 'released') AS moment
WHERE moment.id = claim.id
"""
ASSIGNMENTS = """
UPDATE scheduling_assignment AS assignment SET created_at = claim.created_at, updated_at = claim.released_at
FROM scheduling_claim AS claim WHERE claim.id = assignment.claim_id AND claim.state = 'released'
"""
CHARGES = """
INSERT INTO quotas_ledgerentry (pool_id, resource, kind, used, hard, actor, tenant_id, claim_uid, amount, at)
SELECT entry.pool_id, entry.resource, entry.kind, entry.used, entry.hard, entry.actor, claim.tenant_id, claim.uid,
    entry.amount * sign.of, CASE WHEN sign.of = 1 THEN claim.created_at ELSE claim.released_at END
FROM scheduling_claim AS claim
CROSS JOIN (SELECT DISTINCT ON (resource) * FROM quotas_ledgerentry WHERE claim_uid = %(like)s) AS entry
CROSS JOIN (VALUES (1), (-1)) AS sign (of)
WHERE claim.state = 'released'
"""
FEWER = """
WITH past AS (SELECT id FROM scheduling_claim WHERE state = 'released' AND id % 100 <> 0),
pieces AS (DELETE FROM scheduling_assignment WHERE claim_id IN (SELECT id FROM past))
DELETE FROM scheduling_claim WHERE id IN (SELECT id FROM past)
"""


def main() -> None:
    """Fill, count, print."""
    parser = argparse.ArgumentParser(prog="make bench-past-use", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--claims", type=int, default=100_000, help="released claims of the pool (100,000)")
    parser.add_argument("--days", type=int, default=30, help="days over which they were held (30)")
    parser.add_argument("--times", type=int, default=50, help="how often each row counts (50)")
    arguments = parser.parse_args()
    with own_services(durable=False) as running:
        import django  # noqa: PLC0415 - the settings read the environment that was just made

        django.setup()
        del running
        print_report("past-use", measure(arguments))


def measure(arguments: argparse.Namespace) -> list[Row]:
    """Return a row over the whole history, and one over a hundredth of it."""
    from django.db import connection  # noqa: PLC0415 - the settings, once the environment is made

    from apps.quotas.models import Pool  # noqa: PLC0415 - models, once apps are loaded
    from benchmarks.api.filling import fill  # noqa: PLC0415 - likewise

    fill(clients=1, tenants=20, history=arguments.claims)
    spread(arguments)
    pool = Pool.objects.get(name="default")
    pool.change(fair_share="decayed", half_life_seconds=7 * 86_400)
    rows = [row(pool, arguments)]
    with connection.cursor() as cursor:
        cursor.execute(FEWER)
        cursor.execute("VACUUM ANALYZE")
    return [*rows, row(pool, arguments)]


def row(pool: Any, arguments: argparse.Namespace) -> Row:
    """Count again and again, and return the durations."""
    from apps.scheduling.models import Claim  # noqa: PLC0415 - models, once apps are loaded

    milliseconds = [count(pool) for _ in range(arguments.times)]
    held = Claim.objects.exclude(state="released").count()
    return {"claims": Claim.objects.count(), "of them held": held} | spread_ms(milliseconds)


def spread(arguments: argparse.Namespace) -> None:
    """Give the history times and charges."""
    from django.db import connection  # noqa: PLC0415 - likewise

    from apps.scheduling.models import Claim  # noqa: PLC0415 - likewise

    like = Claim.objects.exclude(state="released").values_list("uid", flat=True)[0]
    asked: dict[str, Any] = {"period": timedelta(days=arguments.days), "count": arguments.claims, "like": like}
    with connection.cursor() as cursor:
        cursor.execute(SPREAD, asked)
        cursor.execute(ASSIGNMENTS)
        cursor.execute(CHARGES, asked)
        cursor.execute("VACUUM ANALYZE")


def count(pool: Any) -> float:
    """Count one half minute, undo it, and return the milliseconds."""
    from django.db import transaction  # noqa: PLC0415 - likewise
    from django.utils import timezone  # noqa: PLC0415 - likewise

    from apps.accounting.services import past_use  # noqa: PLC0415 - likewise

    with transaction.atomic():
        end = timezone.now() - past_use.SETTLED
        begun = time.perf_counter()
        past_use.add(pool, begin=end - PERIOD, end=end, half_life=7 * 86_400)
        milliseconds = 1000 * (time.perf_counter() - begun)
        transaction.set_rollback(True)
    return milliseconds


if __name__ == "__main__":
    main()
