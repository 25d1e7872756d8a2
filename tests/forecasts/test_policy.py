"""The policy `forecast`: what it lends, what it never does, and what it says."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.rebalancing import decide
from apps.rebalancing.forecast import TOO_YOUNG, forecast, kept_core
from apps.rebalancing.percentile import percentile
from apps.rebalancing.values import Bounds, Forecast, Observation

BOUNDS = Bounds()
NOW = 1_000_000
CLAIM = Observation("a", core_request=80, core_limit=100, memory_mib=1000, asked_core_limit=100, measured_seconds=300)
NIGHT = Forecast(upper_percent=12.3, expected_percent=4.0, risk_percent=5, days=9.4, wrong_percent=4.6, judged=2016)


def test_what_will_not_be_needed_is_lent_and_the_reason_has_the_figures() -> None:
    (found,) = forecast([replace(CLAIM, forecast=NIGHT, core_latest=3)], BOUNDS, NOW)
    assert (found.kind, found.after) == ("lend", {"lent_core": 67})
    assert found.explanation == (
        "By 9 days of use of it, it will need at most 12 % of a GPU in the next minutes with a risk of 5 %; 4.6 % of "
        "its last 2016 forecasts were too low. Best-effort claims may use 67 of its 80 points of core meanwhile."
    )
    assert (found.numbers["forecast_percent"], found.numbers["wrong_percent"]) == (12.3, 4.6)


def test_a_claim_that_works_lends_what_it_leaves() -> None:
    (found,) = forecast([replace(CLAIM, forecast=replace(NIGHT, upper_percent=40), core_latest=30)], BOUNDS, NOW)
    assert found.after == {"lent_core": 40}


def test_a_rising_forecast_takes_back_within_the_cool_down() -> None:
    lent = replace(CLAIM, forecast=replace(NIGHT, upper_percent=60), lent_core=60, changed_at=NOW - 1)
    (found,) = forecast([lent], BOUNDS, NOW)
    assert (found.kind, found.after) == ("give-back", {"lent_core": 20})
    assert forecast([replace(lent, lent_core=10)], BOUNDS, NOW) == [], "more is lent after the cool-down only"


def test_an_owner_that_needs_more_than_is_kept_gets_all_of_it() -> None:
    (found,) = forecast([replace(CLAIM, forecast=NIGHT, lent_core=67, core_latest=20)], BOUNDS, NOW)
    assert (found.kind, found.after) == ("give-back", {"lent_core": 0})


@pytest.mark.parametrize("core", [3.0, 30.0, 78.0])
def test_below_three_days_it_is_percentile_and_says_so(core: float) -> None:
    young = replace(CLAIM, core_p95=core, core_mean=core, core_latest=core)
    found, same = forecast([young], BOUNDS, NOW), percentile([young], BOUNDS, NOW)
    assert [replace(one, explanation=f"{TOO_YOUNG} {one.explanation}") for one in same] == found


def test_a_forecast_that_is_no_number_is_none() -> None:
    broken = replace(CLAIM, forecast=replace(NIGHT, upper_percent=math.nan))
    assert forecast([broken], BOUNDS, NOW) == forecast([replace(CLAIM, forecast=None)], BOUNDS, NOW)


percent = st.floats(0, 100)
found_forecasts = st.none() | st.builds(
    Forecast,
    percent | st.just(math.nan),
    percent,
    st.integers(1, 50),
    st.floats(3, 28),
    st.sampled_from(["claim", "tenant"]),
)


@st.composite
def observed(draw: st.DrawFn) -> Observation:
    """Return any claim that the database allows."""
    request = draw(st.integers(1, 100))
    return Observation(
        claim=draw(st.sampled_from("abc")),
        core_request=request,
        core_limit=draw(st.integers(request, 100)),
        memory_mib=1000,
        asked_core_limit=100,
        lent_core=draw(st.integers(0, request)),
        measured_seconds=draw(st.sampled_from([0, 100, 300])),
        core_mean=draw(percent),
        core_p95=draw(percent),
        core_latest=draw(percent),
        throttled_latest=draw(percent),
        memory_most_mib=1000,
        core_room=draw(st.integers(0, 100)),
        lends=draw(st.booleans()),
        changed_at=draw(st.none() | st.integers(NOW - 1000, NOW)),
        forecast=draw(found_forecasts),
    )


@settings(max_examples=500, deadline=None)
@given(st.lists(observed(), max_size=4), st.integers(1, 50))
def test_the_guarantee_is_never_lowered_and_no_more_is_lent_than_there_is(seen: list[Observation], floor: int) -> None:
    bounds = Bounds(floor_percent=floor)
    by_claim = {one.claim: one for one in seen}
    distinct = list(by_claim.values())
    for change in decide(forecast, distinct, bounds, NOW):
        one = by_claim[change.claim]
        if change.kind in ("lend", "give-back"):
            assert set(change.after) == {"lent_core"}
            assert 0 <= change.after["lent_core"] <= one.core_request - min(one.core_request, floor) or (
                change.kind == "give-back" and change.after["lent_core"] < one.lent_core
            )
            assert (change.kind == "lend") == (change.after["lent_core"] > one.lent_core)
        elif change.kind == "resize":
            assert one.forecast is None or math.isnan(one.forecast.upper_percent)
            assert change.after.get("core_request", one.core_request) >= one.core_request
        if change.kind == "lend":
            kept = one.core_request - change.after["lent_core"]
            assert one.lends
            known = one.forecast is not None and not math.isnan(one.forecast.upper_percent)
            assert not known or kept >= min(one.core_request, math.ceil(one.core_latest))
    assert forecast(distinct, bounds, NOW) == forecast(distinct, bounds, NOW)


@settings(max_examples=200, deadline=None)
@given(observed(), percent, percent)
def test_a_higher_forecast_never_lends_more(seen: Observation, one: float, other: float) -> None:
    low, high = sorted((one, other))
    base = replace(NIGHT, upper_percent=low)
    assert kept_core(seen.core_request, base, BOUNDS) <= kept_core(
        seen.core_request, replace(base, upper_percent=high), BOUNDS
    )
