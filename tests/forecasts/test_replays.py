"""Replays of past use under each policy: what they count, and how a dry run shows them."""

import numpy as np
from django.db import connection
from django.test import Client
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.forecasts.quantiles import DAY
from apps.forecasts.replaying import HOURS_OF_A_WINDOW, Past, compare, replay
from apps.quotas.models import User
from apps.quotas.principals import SYSTEM
from apps.rebalancing.values import Bounds
from apps.scheduling.services.claims.sharing import change_pool
from gpucloud.locks import number_of
from tests.cast import Cast, Machine, placed
from tests.forecasts.test_following import remember
from tests.scheduling.clock import Clock
from tests.scheduling.idling import machine

__all__ = ["machine"]

BOUNDS = Bounds()
POLICIES = ("feedback", "percentile", "cron", "forecast")
BEGIN = 1_750_000_200 // 300 * 300


def test_a_claim_that_never_works_lends_all_but_the_floor() -> None:
    found = replay("feedback", [Past("a", 80, np.zeros(DAY))], BOUNDS, begin=BEGIN, first=1)
    assert found.lent_core_hours == round(0.75 * (DAY - 1) * HOURS_OF_A_WINDOW, 10)
    assert (found.throttled, found.changes) == ({}, 1)


def test_a_window_in_which_the_owner_needs_more_than_is_kept_counts_once_and_lends_nothing() -> None:
    used = np.zeros(20)
    used[10] = 50.0
    found = replay("feedback", [Past("a", 80, used)], BOUNDS, begin=BEGIN, first=1)
    assert found.throttled == {"a": 1}
    assert found.lent[0, 10] == 0
    assert found.throttled_percent == 100 / 19


def test_what_is_used_beyond_the_guarantee_throttles_nobody() -> None:
    used = np.tile([10.0, 90.0], 100)
    found = replay("percentile", [Past("a", 5, used)], BOUNDS, begin=BEGIN)
    assert found.throttled == {}


def test_a_young_claim_is_replayed_by_percentile() -> None:
    rng = np.random.default_rng(3)
    past = [Past("a", 80, np.clip(rng.normal(20, 15, 2 * DAY), 0, 100))]
    young, same = compare(("forecast", "percentile"), past, BOUNDS, begin=BEGIN)
    assert young.wrong_percent is None
    assert young.lent_core_hours == same.lent_core_hours
    assert (young.throttled, young.changes) == (same.throttled, same.changes)


use = st.floats(0, 100) | st.just(0.0) | st.just(float("nan"))


@settings(max_examples=60, deadline=None)
@given(st.lists(use, min_size=1, max_size=120), st.integers(1, 100), st.sampled_from(POLICIES), st.integers(0, 20))
def test_the_books_of_a_replay_balance(values: list[float], request: int, name: str, first: int) -> None:
    used = np.array(values)
    found = replay(name, [Past("a", request, used)], BOUNDS, begin=BEGIN, first=first)
    assert found.windows == np.count_nonzero(~np.isnan(used[first:]))
    assert ((found.lent >= 0) & (found.lent <= request)).all()
    assert (found.lent[0, np.isnan(used)] == 0).all()
    owner = np.minimum(np.nan_to_num(used), request)
    assert (owner <= request - found.lent[0] + 1e-9).all(), "what counts as lent, the owner did not need"
    assert sum(found.throttled.values()) <= found.windows


def test_a_dry_run_replays_the_pools_past_and_changes_nothing(cast: Cast, machine: Machine, clock: Clock) -> None:
    change_pool(principal=SYSTEM, pool=cast.pool, rebalance_mode="off")
    claim, _ = placed(cast, machine, core_request=80)
    at = np.arange(6 * DAY)
    remember(claim, clock, np.where(at % DAY < DAY // 2, 40.0, 1.0))
    answer = cast.olga.post("pools/default/rebalance/?dry_run=true&policy=forecast&days=2")
    assert (answer.status, answer.body["policy"], answer.body["mode"]) == (200, "forecast", "off")
    shown = answer.body["replay"]
    assert (shown["days"], shown["claims"], shown["left_out"]) == (2, 1, 0)
    by_policy = {row["policy"]: row for row in shown["policies"]}
    assert set(by_policy) == set(POLICIES)
    assert by_policy["cron"]["lent_core_hours"] == 0
    assert by_policy["forecast"]["lent_core_hours"] > 0
    assert by_policy["forecast"]["wrong_percent"] is not None
    assert by_policy["feedback"]["throttled"] == [{"claim": str(claim.uid), "claim_name": claim.name, "windows": 2}]
    cast.pool.refresh_from_db()
    assert cast.pool.rebalance_policy == "feedback"
    assert cast.olga.post("pools/default/rebalance/?dry_run=true").body["replay"] is None


def test_a_policy_and_days_need_a_dry_run_and_bounds(cast: Cast) -> None:
    for query, name in (
        ("days=2", "dry_run"),
        ("dry_run=true&days=31", "days"),
        ("dry_run=true&policy=none", "policy"),
    ):
        answer = cast.olga.post(f"pools/default/rebalance/?{query}")
        assert (answer.status, name in answer.body["errors"]) == (400, True), query
    assert cast.max.post("pools/default/rebalance/?dry_run=true&policy=forecast").status == 403


def test_a_second_replay_at_once_is_refused_and_works_later(cast: Cast, machine: Machine) -> None:
    other, lock = connection.copy(), [number_of("replay")]
    browser = Client()
    browser.force_login(User.objects.get(username="olga"))
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_try_advisory_lock(%s)", lock)
            answer = cast.olga.post("pools/default/rebalance/?dry_run=true&policy=forecast&days=2")
            page = browser.get("/pools/default/policies/?days=7")
            # The end of a connection gives it back a moment later.
            cursor.execute("SELECT pg_advisory_unlock(%s)", lock)
    finally:
        other.close()
    assert (answer.status, answer.code, answer.headers["Retry-After"]) == (429, "busy", "10")
    assert (page.status_code, b"Another replay runs" in page.content) == (429, True)
    assert cast.olga.post("pools/default/rebalance/?dry_run=true&policy=forecast&days=2").status == 200
