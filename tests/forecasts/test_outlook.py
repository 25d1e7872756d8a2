"""Outlooks of idle bookings: a tenant that comes back at these hours keeps its booking."""

from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from apps.forecasts.outlook import look_ahead
from apps.forecasts.quantiles import DAY
from apps.quotas.models import AuditEvent
from apps.quotas.principals import SYSTEM
from apps.reservations.clock import drive
from apps.reservations.lifecycle import create_reservation
from apps.scheduling.models import Claim, Reservation
from apps.scheduling.services.claims.sharing import change_pool
from tests.cast import GIB, Cast, Machine, placed
from tests.forecasts.test_following import remember
from tests.measurements import steady
from tests.scheduling.clock import Clock
from tests.scheduling.idling import machine

__all__ = ["machine"]

HOURS = 12


@pytest.fixture
def booking(cast: Cast, machine: Machine, clock: Clock) -> tuple[Reservation, Claim]:
    """An idle booking with three hours left, in a pool that reclaims idle ones and is rebalanced by forecasts."""
    bounds = {"forecast_risk_percent": 20}
    facts: dict[str, Any] = {"rebalance_policy": "forecast", "rebalance_mode": "propose", "rebalance_bounds": bounds}
    change_pool(principal=SYSTEM, pool=cast.pool, reclaim_idle=True, **facts)
    asked: dict[str, Any] = {"name": "exam", "core_request": 60, "memory_mib": 8 * GIB, "gpu_count": 1}
    window = {"start_at": clock.now, "end_at": clock.now + timedelta(hours=3)}
    rules: dict[str, Any] = {"grace_seconds": 900, "idle_percent": 5, "idle_seconds": 60}
    row = create_reservation(principal=SYSTEM, tenant=cast.acme, pool=cast.pool, **window, **asked, **rules)[0]
    drive()
    row.refresh_from_db()
    claim, _ = placed(cast, machine, reservation=row, core_request=60)
    return row, claim


def days(*used: bool) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return a past of whole days that ends now; the first hour of a day is the one that begins now."""
    day = np.zeros(DAY)
    return np.concatenate([np.where(np.arange(DAY) == HOURS, 50.0, day) if one else day for one in used])


def idle(claim: Claim, clock: Clock, *, core: float = 1.0) -> None:
    for _ in range(3):
        clock.advance(seconds=61)
        steady(claim.assignments.get(), core, seconds=60)
        drive()


def test_a_booking_that_was_used_at_these_hours_is_kept_and_says_why(
    booking: tuple[Reservation, Claim], clock: Clock
) -> None:
    row, claim = booking
    remember(claim, clock, days(True, False, True, True))
    idle(claim, clock)
    row.refresh_from_db()
    assert (row.state, row.ending) == ("active", None)
    assert row.idle_since is not None
    assert row.reason == (
        "It is idle, but kept: on 3 of 4 earlier days, acme used its bookings in pool default at the hours that are "
        "left of it."
    )
    assert AuditEvent.objects.filter(action="reservation.keep").count() == 1
    idle(claim, clock, core=50.0)
    again = Reservation.objects.get()
    assert (again.idle_since, again.reason) == (None, None)


@pytest.mark.parametrize(
    ("past", "facts"),
    [
        ((False, False, False, False), {}),
        ((False, False, True, False, False, False), {}),
        ((True, True), {}),
        ((True, True, True, True), {"rebalance_policy": "percentile"}),
        ((True, True, True, True), {"rebalance_mode": "off"}),
    ],
    ids=["never used", "used on fewer days than the risk", "too little is known", "another policy", "off"],
)
def test_control_any_other_idle_booking_is_returned(
    booking: tuple[Reservation, Claim], clock: Clock, past: tuple[bool, ...], facts: dict[str, Any]
) -> None:
    row, claim = booking
    change_pool(principal=SYSTEM, pool=row.pool, **facts)
    remember(claim, clock, days(*past))
    idle(claim, clock)
    row.refresh_from_db()
    assert row.ending == "idle"


def test_the_same_weekday_counts_alone_once_it_is_known_three_times(
    booking: tuple[Reservation, Claim], clock: Clock
) -> None:
    row, claim = booking
    week = (True, False, False, False, False, False, False)
    remember(claim, clock, days(*week * 3))
    found = look_ahead(row, now=clock.now)
    assert (found, found and found.percent) == ((3, 3), 100.0)


def test_hours_after_the_end_of_the_booking_do_not_count(booking: tuple[Reservation, Claim], clock: Clock) -> None:
    row, claim = booking
    remember(claim, clock, days(True, True, True))
    assert look_ahead(row, now=clock.now) == (3, 3)
    row.end_at = clock.now + timedelta(minutes=HOURS * 5)
    assert look_ahead(row, now=clock.now) == (3, 0)
