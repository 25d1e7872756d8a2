"""Replays of a pool's recorded use under each rebalance policy, for a dry run of the rebalancer."""

from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, F
from django.utils import timezone

from apps.forecasts import history
from apps.forecasts.models import UseDay
from apps.forecasts.quantiles import DAY, HOUR, LEAST_DAYS, count_days
from apps.forecasts.replaying import Past, compare
from apps.nodes.models import TelemetryMark
from apps.quotas.models import Pool
from apps.rebalancing import POLICIES
from apps.scheduling.models import Claim
from apps.scheduling.services.rebalancing.observing import bounds_of
from gpucloud.errors import Busy
from gpucloud.locks import exclusive

# A claim's month takes about a second and a half under all policies.
MOST_CLAIMS = 20
# Named claims whose owners would have been throttled, most often first.
MOST_NAMED = 10


def replay_pool(pool: Pool, *, days: int, now: datetime | None = None) -> dict[str, Any]:
    """Return what each policy would have lent in the pool's last days, and who would have been throttled.

    The claims with the largest guarantees and the longest use are replayed. The first days of a claim have no forecast.
    Raises Busy while another one runs: each keeps a processor busy for up to half a minute.
    """
    with exclusive("replay") as free:
        if not free:
            raise Busy("Another replay runs. Try again when it is done.", retry_after_seconds=10)
        return _replay(pool, days, now or timezone.now())


def _replay(pool: Pool, days: int, now: datetime) -> dict[str, Any]:
    mark = TelemetryMark.objects.filter(name=history.MARK).first()
    end = mark.at if mark else now
    first = (end - timedelta(days=days)).date()
    recorded = UseDay.objects.filter(claim__pool=pool, day__gte=first, claim__rebalance=True, claim__borrowed_core=0)
    # Each series takes 85 kB: only those that are replayed are read.
    by_size = recorded.values("claim").annotate(size=F("claim__core_request") * Count("pk")).order_by("-size", "claim")
    claims = Claim.objects.in_bulk([row["claim"] for row in by_size[:MOST_CLAIMS]])
    series = history.read_series(list(claims), end=end, days=history.KEPT_DAYS)
    order = sorted(series, key=lambda key: (-claims[key].core_request * count_days(series[key]), key))
    pasts = [Past(str(claims[key].uid), claims[key].core_request, series[key]) for key in order]
    length = len(pasts[0].used) if pasts else 0
    begin = int((end - length * history.WINDOW).timestamp())
    outcomes = compare(POLICIES, pasts, bounds_of(pool), begin=begin, first=max(HOUR, length - days * DAY))
    names = {str(row.uid): row for row in claims.values()}
    return {
        "days": days,
        "claims": len(pasts),
        "left_out": by_size.count() - len(claims),
        "least_days": LEAST_DAYS,
        "policies": [
            {
                "policy": one.policy,
                "lent_core_hours": round(one.lent_core_hours, 1),
                "throttled_percent": round(one.throttled_percent, 2),
                "changes_per_day": round(one.changes * DAY / one.windows, 1) if one.windows else 0.0,
                "wrong_percent": None if one.wrong_percent is None else round(one.wrong_percent, 2),
                "throttled": [
                    {"claim": uid, "claim_name": names[uid].name, "windows": number}
                    for uid, number in sorted(one.throttled.items(), key=lambda item: (-item[1], item[0]))[:MOST_NAMED]
                ],
            }
            for one in outcomes
        ],
    }
