"""Outlooks: on how many of the last days a tenant used its bookings at the hours that are still to come."""

from datetime import datetime, timedelta
from typing import NamedTuple

import numpy as np
from django.db.models import Max

from apps.forecasts import history
from apps.forecasts.models import UseDay
from apps.forecasts.quantiles import DAY, LEAST_DAYS, Series
from apps.nodes.services.telemetry.levels import floor
from apps.quotas.models import RebalanceMode, RebalancePolicy
from apps.scheduling.models import Reservation
from apps.scheduling.services.rebalancing.observing import bounds_of

# Claims of earlier bookings that are looked at, the newest; a series of each takes 65 kB.
MOST_CLAIMS = 50
WEEKDAYS = 7


def expects_use(reservation: Reservation, *, now: datetime) -> str | None:
    """Return why the tenant is expected to use the booking again, in words; None if it is not, or nothing is known.

    Only a pool that is rebalanced by forecasts expects anything.
    """
    pool = reservation.pool
    if pool.rebalance_policy != RebalancePolicy.FORECAST or pool.rebalance_mode == RebalanceMode.OFF:
        return None
    found = look_ahead(reservation, now=now)
    if found is None or found.percent <= bounds_of(pool).forecast_risk_percent:
        return None
    return (
        f"It is idle, but kept: on {found.used} of {found.days} earlier days, {reservation.tenant.slug} used its "
        f"bookings in pool {pool.name} at the hours that are left of it."
    )


class Outlook(NamedTuple):
    """The number of earlier days that are known at these hours, and of those on which a booking was used."""

    days: int
    used: int

    @property
    def percent(self) -> float:
        """The part of the days on which a booking was used."""
        return 100 * self.used / self.days


def look_ahead(reservation: Reservation, *, now: datetime) -> Outlook | None:
    """Return how often the tenant used bookings of the pool between now and this one's end, at most a day on.

    The same weekday counts alone if it is known three times. None below three known days.
    """
    begin = floor(now, history.WINDOW)
    windows = min(DAY, -(-(reservation.end_at - begin) // history.WINDOW))
    series = history.read_series(_claims(reservation, begin), end=begin, days=history.READ_DAYS)
    above = float(reservation.idle_percent or 0)
    known: dict[int, bool] = {}
    for back in range(1, history.READ_DAYS + 1):
        used = _is_used([one[len(one) - back * DAY :][:windows] for one in series.values()], above)
        if used is not None:
            known[back] = used
    weekly = [used for back, used in known.items() if back % WEEKDAYS == 0]
    chosen = weekly if len(weekly) >= LEAST_DAYS else list(known.values())
    return Outlook(len(chosen), sum(chosen)) if len(chosen) >= LEAST_DAYS else None


def _claims(reservation: Reservation, begin: datetime) -> list[int]:
    """Return the claims of the tenant's bookings in the pool that were used last."""
    rows = UseDay.objects.filter(claim__reservation__tenant=reservation.tenant, claim__pool=reservation.pool)
    rows = rows.filter(day__gte=(begin - timedelta(days=history.READ_DAYS)).date(), day__lte=begin.date())
    newest = rows.values("claim").annotate(last=Max("day")).order_by("-last", "-claim")
    return list(newest.values_list("claim", flat=True)[:MOST_CLAIMS])


def _is_used(parts: list[Series], above: float) -> bool | None:
    """Return True if some claim used more in some window; None if nothing was measured."""
    values = np.concatenate(parts) if parts else np.empty(0)
    values = values[~np.isnan(values)]
    return bool((values > above).any()) if values.size else None
