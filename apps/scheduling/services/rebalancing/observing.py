"""Observations for the rebalancer: the measured use of a pool's claims in a window, in one query."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from apps.quotas.models import Pool, RebalancePolicy
from apps.rebalancing.values import Bounds, Forecast, Hours, Observation
from apps.scheduling.providers import lending_forecasts
from apps.scheduling.services.charging import borrowing

MIB = 1 << 20
# Samples come once a second: an older one does not show the present use.
LATEST = timedelta(seconds=5)

# Among several GPUs, the busiest counts; among their measured times, the shortest. Nothing from before a claim's last
# change counts: its use under other limits says nothing about these.
MEASURED = """
WITH use AS (
    SELECT assignment.id, extract(epoch FROM max(at) - min(at)) + 1 AS measured,
        avg(core_percent) AS mean,
        percentile_cont(0.95) WITHIN GROUP (ORDER BY core_percent) AS p95,
        (array_agg(core_percent ORDER BY at DESC) FILTER (WHERE at >= %(latest)s))[1] AS latest,
        avg(throttled_percent) AS throttled,
        (array_agg(throttled_percent ORDER BY at DESC) FILTER (WHERE at >= %(latest)s))[1] AS throttled_latest,
        percentile_cont(0.95) WITHIN GROUP (ORDER BY memory_bytes) AS memory_p95,
        max(memory_bytes) AS memory_most
    FROM scheduling_claim claim
    JOIN scheduling_assignment assignment
        ON assignment.claim_id = claim.id AND assignment.state IN ('in_force', 'over_limit')
    JOIN nodes_gpu gpu ON gpu.id = assignment.gpu_id
    JOIN nodes_sample sample ON sample.node_id = gpu.node_id AND sample.assignment_uid = assignment.uid
    WHERE claim.pool_id = %(pool)s AND claim.state = 'active' AND claim.rebalance AND claim.borrowed_core = 0
        AND sample.gpu_id IS NULL AND sample.at >= %(begin)s AND sample.at <= %(now)s
        AND sample.at >= greatest(%(begin)s, claim.rebalanced_at, assignment.in_force_at)
    GROUP BY assignment.id
)
SELECT claim.uid, claim.core_request, claim.core_limit, claim.memory_mib,
    coalesce(claim.asked_core_limit, claim.core_limit), claim.lent_core,
    extract(epoch FROM claim.rebalanced_at)::bigint,
    min(use.measured), max(use.mean), max(use.p95), coalesce(max(use.latest), 0),
    max(use.throttled), coalesce(max(use.throttled_latest), 0), max(use.memory_p95), max(use.memory_most),
    min(100 - gpu.core_used - gpu.core_outside)
FROM scheduling_claim claim
JOIN scheduling_assignment assignment
    ON assignment.claim_id = claim.id AND assignment.state IN ('in_force', 'over_limit')
JOIN nodes_gpu gpu ON gpu.id = assignment.gpu_id
JOIN use ON use.id = assignment.id
WHERE claim.pool_id = %(pool)s AND claim.state = 'active' AND claim.rebalance AND claim.borrowed_core = 0
GROUP BY claim.id
ORDER BY claim.id
"""


def bounds_of(pool: Pool) -> Bounds:
    """Return the pool's bounds: its own, and the defaults for the rest."""
    said: dict[str, Any] = dict(pool.rebalance_bounds)
    hours = tuple(
        Hours(tuple(row["days"]), _minute(row["from"]), _minute(row["to"]), row["share_percent"])
        for row in said.pop("calendar", [])
    )
    return Bounds(**said, calendar=hours)


def _minute(text: str) -> int:
    hour, _, minute = text.partition(":")
    return int(hour) * 60 + int(minute)


def observe(pool: Pool, *, now: datetime) -> list[Observation]:
    """Return an observation of every claim of the pool that the rebalancer may change and that was measured."""
    bounds = bounds_of(pool)
    asked: dict[str, Any] = {
        "pool": pool.pk,
        "now": now,
        "latest": now - LATEST,
        "begin": now - timedelta(seconds=bounds.window_seconds),
    }
    lends, forecasts = borrowing.lends(pool), _forecasts(pool, now)
    with connection.cursor() as cursor:
        cursor.execute(MEASURED, asked)
        return [_observation(row, lends=lends, forecast=forecasts.get(str(row[0]))) for row in cursor.fetchall()]


def _forecasts(pool: Pool, now: datetime) -> Mapping[str, Forecast]:
    provider = lending_forecasts.find()
    if provider is None or pool.rebalance_policy != RebalancePolicy.FORECAST:
        return {}
    return provider.read_forecasts(pool, now=now)


def _observation(row: tuple[Any, ...], *, lends: bool, forecast: Forecast | None) -> Observation:
    uid, core_request, core_limit, memory_mib, asked, lent, changed_at, *use = row
    measured, mean, p95, latest, throttled, throttled_latest, memory_p95, memory_most, room = use
    return Observation(
        claim=str(uid),
        core_request=core_request,
        core_limit=core_limit,
        memory_mib=memory_mib,
        asked_core_limit=asked,
        lent_core=lent,
        measured_seconds=int(measured),
        core_mean=mean,
        core_p95=p95,
        core_latest=latest,
        throttled_mean=throttled or 0.0,
        throttled_latest=throttled_latest,
        memory_p95_mib=-int(-memory_p95 // MIB),
        memory_most_mib=-int(-memory_most // MIB),
        core_room=max(0, room),
        lends=lends,
        changed_at=changed_at,
        forecast=forecast,
    )
