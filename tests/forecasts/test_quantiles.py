"""Quantile forecasts of use: their calibration, and what a gap, a shift of the clock or a change of habits does."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.forecasts import quantiles
from apps.forecasts.quantiles import DAY, LEAST_DAYS, Fit, Series
from apps.forecasts.replaying import forecasts

HOUR = DAY // 24
SHORT = LEAST_DAYS * DAY - 1


def office(days: int, *, seed: int = 1, begin: int = 9, level: float = 60.0) -> Series:
    """Return use on weekdays from nine to five, in windows that are busy or not."""
    rng = np.random.default_rng(seed)
    at = np.arange(days * DAY)
    hour, weekday = at % DAY / HOUR, at // DAY % 7
    open_now = (hour >= begin) & (hour < begin + 8) & (weekday < 5)
    busy = open_now & (rng.random(len(at)) < 0.7)
    return np.where(busy, np.clip(rng.normal(level, 8, len(at)), 0, 100), rng.random(len(at)))


def wrong_percent(used: Series, risk: int, *, last: int) -> float:
    made = forecasts(used, risk, len(used) - last)
    judged = [quantiles.is_wrong(used[at], found.upper_percent) for at, found in made.items() if not np.isnan(used[at])]
    return 100 * float(np.mean(judged))


@pytest.mark.parametrize("risk", [2, 5, 10])
def test_the_part_above_the_forecast_is_the_risk_within_two_points(risk: int) -> None:
    assert abs(wrong_percent(office(21), risk, last=10 * DAY) - risk) <= 2


def test_a_night_is_forecast_to_be_idle_and_a_morning_to_be_busy() -> None:
    found = forecasts(office(21), 5, 15 * DAY)
    # Day 15 is a Tuesday: at four nothing runs, at eleven nearly every window is busy.
    assert found[15 * DAY + 4 * HOUR].upper_percent < 15
    assert found[15 * DAY + 11 * HOUR].upper_percent > 55


@pytest.mark.parametrize("shift", [-1, 1])
def test_an_hour_more_or_less_in_spring_and_autumn_keeps_the_risk(shift: int) -> None:
    before, after = office(14), office(14, seed=2, begin=9 + shift)
    assert abs(wrong_percent(np.concatenate([before, after]), 5, last=14 * DAY) - 5) <= 2


def test_habits_that_change_between_two_weeks_keep_the_risk() -> None:
    changed = np.concatenate([office(14), office(14, seed=3, begin=16, level=90.0)])
    assert abs(wrong_percent(changed, 5, last=14 * DAY) - 5) <= 2


def test_without_the_correction_changed_habits_break_the_risk() -> None:
    """The control: the coefficients of the first two weeks alone are wrong far more often."""
    old, new = office(14, level=30.0), office(7, seed=3, level=90.0)
    fixed = quantiles.fit([old], 5)
    assert fixed is not None
    both = np.concatenate([old, new])
    at = np.arange(len(old), len(both))
    upper = quantiles.features(both, at) @ fixed.upper + fixed.offset
    assert 100 * float(np.mean(new > upper)) > 7


def test_gaps_are_neither_use_nor_idleness() -> None:
    used = office(21)
    rng = np.random.default_rng(5)
    used[rng.random(len(used)) < 0.3] = np.nan
    used[16 * DAY : 17 * DAY] = np.nan
    assert abs(wrong_percent(used, 5, last=5 * DAY) - 5) <= 2


def test_three_measured_days_are_needed_however_long_ago_the_first_was() -> None:
    used = np.full(30 * DAY, np.nan)
    used[::11] = 40.0
    assert quantiles.count_days(used) < LEAST_DAYS
    assert quantiles.fit([used], 5) is None
    assert quantiles.fit([office(2), office(2, seed=2)], 5) is not None, "series of a tenant count together"


use = st.floats(0, 100) | st.just(float("nan")) | st.just(0.0)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(use, min_size=HOUR, max_size=3 * DAY),
    st.integers(1, 50),
    st.lists(st.floats(-3, 3), min_size=13, max_size=13),
)
def test_a_forecast_is_a_part_of_a_gpu_whatever_was_measured(
    values: list[float], risk: int, coefficients: list[float]
) -> None:
    series = np.array(values)
    found = Fit(tuple(coefficients), tuple(coefficients), 1.0)
    band = quantiles.forecast(series, found)
    assert 0 <= band.expected <= band.upper <= 100
    assert band == quantiles.forecast(series.copy(), found)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 20), st.sampled_from([0.0, 0.2, 0.6]))
def test_a_fit_is_finite_and_the_same_each_time(seed: int, risk: int, gaps: float) -> None:
    used = office(9, seed=seed)
    used[np.random.default_rng(seed).random(len(used)) < gaps] = np.nan
    found = quantiles.fit([used], risk)
    assert found is not None
    assert found == quantiles.fit([used.copy()], risk)
    assert np.isfinite([*found.expected, *found.upper, found.offset]).all()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=200), st.integers(1, 50))
def test_the_correction_rises_after_a_wrong_forecast_only_and_stays_in_its_bounds(wrong: list[bool], risk: int) -> None:
    offset = 0.0
    for one in wrong:
        before, offset = offset, quantiles.corrected(offset, used=2.0 if one else 0.0, upper=1.0, risk_percent=risk)
        assert (offset >= before) if one else (offset <= before)
        assert quantiles.LEAST_OFFSET <= offset <= quantiles.MOST_OFFSET


def test_only_the_past_counts() -> None:
    used = office(10)
    changed = used.copy()
    changed[9 * DAY :] = 100.0
    first = forecasts(used, 5, 9 * DAY)[9 * DAY]
    assert first == replace(forecasts(changed, 5, 9 * DAY)[9 * DAY])
    assert SHORT not in forecasts(used, 5)
