"""Forecasts over the database: recorded windows, fits, judged forecasts, and what the rebalancer makes of them."""

from datetime import timedelta

import numpy as np
import pytest

from agent import wire
from apps.forecasts import history, services
from apps.forecasts.models import ClaimForecast, UseDay
from apps.forecasts.quantiles import DAY, Series
from apps.nodes.models import TelemetryMark, UsageMinute
from apps.nodes.services.telemetry.levels import EPOCH, MINUTE, floor
from apps.quotas.principals import SYSTEM
from apps.rebalancing.forecast import TOO_YOUNG
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.sharing import change_pool
from apps.scheduling.services.rebalancing import waking
from tests.cast import Cast, Machine, assert_books_agree, placed
from tests.scheduling.clock import Clock
from tests.scheduling.idling import machine, measured, run

__all__ = ["machine"]

WINDOW = history.WINDOW


@pytest.fixture(autouse=True)
def by_forecast(cast: Cast, machine: Machine) -> None:
    change_pool(principal=SYSTEM, pool=cast.pool, rebalance_policy="forecast")


def roll(claim: Claim, clock: Clock, *cores: float, minutes: int = 5) -> None:
    """Advance the time by a window for each of these, with such minutes of the claim rolled up."""
    for core in cores:
        begin = floor(clock.now, WINDOW)
        if clock.now != begin:
            begin += WINDOW
            clock.advance(seconds=(begin - clock.now).total_seconds())
        clock.advance(seconds=300)
        for assignment in claim.assignments.all():
            UsageMinute.objects.bulk_create(
                UsageMinute(
                    at=begin + number * MINUTE.span, node_id=assignment.gpu.node_id, gpu_id=assignment.gpu_id,
                    uid=assignment.uid, samples=60, core=core, core_most=core, memory=0, memory_most=0, gpu_time_ms=0,
                )
                for number in range(minutes)
            )  # fmt: skip
        TelemetryMark.objects.update_or_create(name="rolled", defaults={"at": floor(clock.now, WINDOW)})
        TelemetryMark.objects.get_or_create(name=history.MARK, defaults={"at": begin})


def remember(claim: Claim, clock: Clock, series: Series) -> None:
    """Store a past of this use that ends now."""
    end = floor(clock.now, WINDOW)
    first = end - len(series) * WINDOW
    values: dict[int, float] = dict(enumerate(series.tolist()))
    found: dict[tuple[int, object], dict[int, float]] = {}
    for number, value in values.items():
        at = first + number * WINDOW
        found.setdefault((claim.pk, at.date()), {})[history.window_of_day(at)] = value
    history.write("used", found)  # type: ignore[arg-type]
    for name in ("rolled", history.MARK):
        TelemetryMark.objects.update_or_create(name=name, defaults={"at": end})


def follow(clock: Clock) -> int:
    return services.follow_use(now=clock.now)


def test_the_highest_minute_of_a_window_is_recorded_and_a_window_with_too_few_is_a_gap(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    claim, _ = placed(cast, machine, core_request=80)
    roll(claim, clock, 12.0, 34.0)
    roll(claim, clock, 99.0, minutes=2)
    follow(clock)
    end = floor(clock.now, WINDOW)
    series = history.read_series([claim.pk], end=end, days=1)[claim.pk]
    assert series[-3:-1].tolist() == [12.0, 34.0]
    assert np.isnan(series[-1])
    assert np.isnan(series[:-3]).all()
    follow(clock)
    assert UseDay.objects.filter(claim=claim).count() in (1, 2), "a second run records nothing twice"


def test_a_young_claim_is_treated_as_by_percentile_and_told_so(cast: Cast, machine: Machine, clock: Clock) -> None:
    claim, _ = placed(cast, machine, core_request=80)
    roll(claim, clock, 3.0)
    assert follow(clock) == 0
    measured(claim, clock, core_percent=3.0)
    (found,) = run(cast)
    assert (found.kind, found.policy) == ("lend", "forecast")
    assert found.explanation.startswith(TOO_YOUNG)


def test_a_known_claim_lends_by_its_forecast_and_the_books_balance(cast: Cast, machine: Machine, clock: Clock) -> None:
    claim, _ = placed(cast, machine, core_request=80)
    remember(claim, clock, np.tile([20.0, 22.0, 18.0], 5 * DAY // 3))
    assert follow(clock) == 1
    row = ClaimForecast.objects.get(claim=claim)
    assert row.upper is not None
    assert 20 <= row.upper <= 26
    measured(claim, clock, core_percent=20.0)
    (found,) = run(cast)
    assert found.state == "applied"
    assert found.after["lent_core"] == 80 - int(-(-row.upper // 1))
    assert found.numbers["risk_percent"] == 5
    claim.refresh_from_db()
    assert (claim.core_request, claim.core_limit) == (80, 80)
    assert_books_agree()


def test_the_owner_wakes_the_claim_only_with_more_than_is_kept(cast: Cast, machine: Machine, clock: Clock) -> None:
    claim, _ = placed(cast, machine, core_request=80)
    remember(claim, clock, np.full(5 * DAY, 20.0))
    follow(clock)
    measured(claim, clock, core_percent=20.0)
    run(cast)
    claim.refresh_from_db()
    kept = claim.core_request - claim.lent_core
    clock.advance(seconds=1)

    def tell(core: float) -> int:
        used = wire.AssignmentUsage(
            uid=str(claim.assignments.get().uid), core_percent=core, core_limit_percent=100, throttled_percent=0,
            memory_bytes=0, memory_limit_bytes=0, processes=1,
        )  # fmt: skip
        return waking.wake({str(claim.uid): used}, at=clock.now)

    assert tell(kept) == 0
    assert tell(kept + 1) == 1
    claim.refresh_from_db()
    assert claim.lent_core == 0


def test_forecasts_are_judged_by_what_was_used(cast: Cast, machine: Machine, clock: Clock) -> None:
    claim, _ = placed(cast, machine, core_request=80)
    remember(claim, clock, np.full(4 * DAY, 20.0))
    follow(clock)
    before = ClaimForecast.objects.get(claim=claim)
    for core in (20.0, 90.0):
        roll(claim, clock, core)
        follow(clock)
    row = ClaimForecast.objects.get(claim=claim)
    assert (row.judged, row.wrong_percent) == (2, 50.0)
    assert row.offset > before.offset
    (day, *_) = UseDay.objects.filter(claim=claim).order_by("-day")
    assert not np.isnan(np.array(day.upper, dtype=float)).all(), "the band is kept for the chart"


def test_an_old_forecast_is_none(cast: Cast, machine: Machine, clock: Clock) -> None:
    claim, _ = placed(cast, machine, core_request=80)
    remember(claim, clock, np.full(4 * DAY, 20.0))
    follow(clock)
    cast.pool.refresh_from_db()
    assert str(claim.uid) in services.read_forecasts(cast.pool, now=clock.now)
    late = clock.now + services.FRESH + timedelta(minutes=6)
    assert services.read_forecasts(cast.pool, now=late) == {}


def test_a_young_claim_is_forecast_by_its_tenants_other_claims(cast: Cast, machine: Machine, clock: Clock) -> None:
    old, _ = placed(cast, machine, core_request=40)
    remember(old, clock, np.full(4 * DAY, 20.0))
    young, _ = placed(cast, machine, core_request=30)
    roll(young, clock, 21.0)
    assert follow(clock) == 2
    row = ClaimForecast.objects.get(claim=young)
    assert (row.of_tenant, row.fit_upper) == (True, None)
    assert services.as_value(row).source == "tenant"


def test_what_is_older_than_a_month_is_forgotten(cast: Cast, machine: Machine, clock: Clock) -> None:
    claim, _ = placed(cast, machine, core_request=80)
    remember(claim, clock, np.full(DAY, 20.0))
    clock.advance(days=history.KEPT_DAYS + 2)
    TelemetryMark.objects.filter(name=history.MARK).update(at=floor(clock.now, WINDOW) - WINDOW)
    TelemetryMark.objects.filter(name="rolled").update(at=floor(clock.now, WINDOW))
    follow(clock)
    assert not UseDay.objects.filter(claim=claim).exists()
    assert clock.now > EPOCH
