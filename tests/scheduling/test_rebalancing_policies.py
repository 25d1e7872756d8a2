"""The rebalancer's policies, pure: inputs, changes, and convergence."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.rebalancing import POLICIES, decide
from apps.rebalancing.values import Bounds, Change, Hours, Observation
from tests.matrix import examples

NOW = 1_800_000_000
BOUNDS = Bounds()


def seen(**facts: Any) -> Observation:
    """Create a claim of 60 % that was measured for the whole window and idle."""
    facts = {"core_request": 60, "core_limit": 60, "memory_mib": 8192, "measured_seconds": 300, **facts}
    return Observation(**{"claim": "c1", "asked_core_limit": facts["core_limit"], "core_room": 40, **facts})


def one(policy: str, observation: Observation, bounds: Bounds = BOUNDS, now: int = NOW) -> Change | None:
    changes = decide(POLICIES[policy], [observation], bounds, now)
    assert len(changes) <= 1
    return changes[0] if changes else None


def told(change: Change | None) -> tuple[str, dict[str, int]] | None:
    return (change.kind, dict(change.after)) if change else None


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, ("lend", {"lent_core": 55})),
        ({"core_p95": 2.1}, None),
        ({"lent_core": 55}, None),
        ({"lends": False}, None),
        ({"core_latest": 5}, None),
        ({"measured_seconds": 239}, None),
        ({"changed_at": NOW - 299}, None),
        ({"changed_at": NOW - 300}, ("lend", {"lent_core": 55})),
        ({"lent_core": 55, "core_latest": 5, "changed_at": NOW}, ("give-back", {"lent_core": 0})),
        ({"lent_core": 55, "throttled_latest": 20, "changed_at": NOW}, ("give-back", {"lent_core": 0})),
        ({"throttled_mean": 50, "core_mean": 59, "core_p95": 60}, ("limit", {"core_limit": 80})),
        ({"throttled_mean": 50, "core_mean": 95, "core_p95": 98, "core_limit": 100}, None),
        ({"throttled_mean": 50, "core_mean": 61, "core_p95": 62, "core_limit": 100}, ("resize", {"core_request": 80})),
        (
            {"throttled_mean": 50, "core_mean": 61, "core_p95": 62, "core_limit": 100, "core_room": 7},
            ("resize", {"core_request": 67}),
        ),
        ({"throttled_mean": 50, "core_mean": 61, "core_p95": 62, "core_limit": 100, "core_room": 0}, None),
        ({"core_limit": 100, "asked_core_limit": 60, "core_p95": 56}, ("limit", {"core_limit": 80})),
        ({"core_limit": 100, "asked_core_limit": 60, "core_p95": 57}, None),
        ({"core_limit": 80, "asked_core_limit": 80, "core_p95": 10}, None),
    ],
)
def test_feedback(facts: dict[str, Any], expected: tuple[str, dict[str, int]] | None) -> None:
    assert told(one("feedback", seen(**facts))) == expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"core_p95": 20, "memory_p95_mib": 8000, "memory_most_mib": 8000}, ("lend", {"lent_core": 20})),
        ({"core_p95": 20, "lent_core": 20}, ("lend", {"lent_core": 36})),
        ({"core_p95": 45, "memory_p95_mib": 8000, "memory_most_mib": 8000}, ("lend", {"lent_core": 6})),
        ({"core_p95": 48, "memory_p95_mib": 8000, "memory_most_mib": 8000}, None),
        ({"core_p95": 58, "core_limit": 100}, ("resize", {"core_request": 70})),
        ({"core_p95": 58, "memory_p95_mib": 8000, "memory_most_mib": 8000}, None),
        ({"core_p95": 48, "memory_p95_mib": 4000, "memory_most_mib": 5000}, ("resize", {"memory_mib": 5000})),
        ({"core_p95": 48, "memory_p95_mib": 4000, "memory_most_mib": 4100}, ("resize", {"memory_mib": 4800})),
        ({"lent_core": 40, "core_latest": 25, "changed_at": NOW}, ("give-back", {"lent_core": 0})),
        ({"lent_core": 40, "core_latest": 15, "changed_at": NOW}, None),
    ],
)
def test_percentile(facts: dict[str, Any], expected: tuple[str, dict[str, int]] | None) -> None:
    assert told(one("percentile", seen(**facts))) == expected


# 2027-01-15 08:00 UTC, a Friday.
FRIDAY = 1_800_000_000
NIGHTS = Bounds(calendar=(Hours((0, 1, 2, 3, 4), 20 * 60, 6 * 60, 10), Hours((5, 6), 0, 24 * 60, 50)))


@pytest.mark.parametrize(
    ("hours_later", "facts", "expected"),
    [
        (0, {}, None),
        (12, {}, ("lend", {"lent_core": 54})),
        (12, {"core_latest": 5}, None),
        (12, {"changed_at": FRIDAY + 12 * 3600 - 10}, None),
        (16, {"lent_core": 30, "core_latest": 80}, ("give-back", {"lent_core": 0})),
        # Saturday at five is still Friday's night; at seven it is Saturday.
        (21, {}, ("lend", {"lent_core": 54})),
        (23, {"lent_core": 54}, ("give-back", {"lent_core": 30})),
        (72, {"lent_core": 54}, ("give-back", {"lent_core": 0})),
    ],
)
def test_cron(hours_later: int, facts: dict[str, Any], expected: tuple[str, dict[str, int]] | None) -> None:
    assert told(one("cron", seen(**facts), NIGHTS, FRIDAY + hours_later * 3600)) == expected


def test_a_change_says_why_in_words_and_numbers() -> None:
    change = one("feedback", seen(throttled_mean=50, core_mean=59, core_p95=60))
    assert change is not None
    assert change.explanation == (
        "Its launches waited 50 % of the last 300 s while it used 59 % of a GPU: its limit of 60 % holds it back."
    )
    assert change.numbers["throttled_percent"] == 50


def test_what_is_owed_goes_first_and_the_rest_is_bounded() -> None:
    owed = [seen(claim=f"owed{i}", lent_core=55, core_latest=50) for i in range(3)]
    held = [seen(claim=f"held{i}", throttled_mean=50, core_mean=59, core_p95=60) for i in range(3)]
    idle = [seen(claim=f"idle{i}", core_request=10 + i) for i in range(3)]
    changes = decide(POLICIES["feedback"], [*idle, *held, *owed], replace(BOUNDS, most_changes=4), NOW)
    assert [change.claim for change in changes] == ["owed0", "owed1", "owed2", "held0"]
    changes = decide(POLICIES["feedback"], idle, replace(BOUNDS, most_changes=2), NOW)
    assert [change.claim for change in changes] == ["idle2", "idle1"]


observations = st.builds(
    seen,
    core_request=st.integers(1, 60),
    core_limit=st.integers(60, 100),
    asked_core_limit=st.integers(60, 100),
    lent_core=st.just(0),
    measured_seconds=st.integers(0, 300),
    core_mean=st.floats(0, 100),
    core_p95=st.floats(0, 100),
    core_latest=st.floats(0, 100),
    throttled_mean=st.floats(0, 100),
    memory_p95_mib=st.integers(0, 8192),
    memory_most_mib=st.integers(0, 8192),
    core_room=st.integers(0, 100),
    lends=st.booleans(),
)


@given(observations, st.sampled_from(sorted(POLICIES)), st.integers(1, 60), st.integers(60, 100))
def test_no_policy_leaves_its_bounds(observation: Observation, policy: str, floor: int, ceiling: int) -> None:
    bounds = replace(NIGHTS, floor_percent=floor, ceiling_percent=ceiling)
    change = one(policy, observation, bounds, FRIDAY + 12 * 3600)
    if change is None:
        return
    after = dict(change.after)
    assert after != dict(change.before)
    if change.kind == "lend":
        assert observation.lends
        assert observation.core_request - after["lent_core"] >= min(floor, observation.core_request)
    if "core_request" in after:
        assert after["core_request"] <= min(ceiling, observation.core_limit)
        assert after["core_request"] - observation.core_request <= min(bounds.step_percent, observation.core_room)
    if "core_limit" in after:
        assert observation.core_request <= after["core_limit"]
        assert after["core_limit"] <= max(ceiling, observation.core_limit)
        assert after["core_limit"] >= min(observation.asked_core_limit, observation.core_limit)
    if "memory_mib" in after:
        assert observation.memory_most_mib <= after["memory_mib"] < observation.memory_mib


@dataclass
class Simulated:
    """A claim whose program has a demand at each second, and gets what its limit leaves."""

    demand: Callable[[int], float]
    request: int = 40
    limit: int = 40
    asked: int = 40
    lent: int = 0
    changed_at: int | None = None

    def __post_init__(self) -> None:
        self.changes: list[tuple[int, str, dict[str, int]]] = []
        self.used: list[tuple[float, float]] = []

    def run(self, policy: str, seconds: int, *, every: int = 15, bounds: Bounds = BOUNDS) -> None:
        for second in range(len(self.used), len(self.used) + seconds):
            wanted = self.demand(second)
            got = min(wanted, self.limit)
            self.used.append((got, 100 * (wanted - got) / wanted if wanted else 0))
            if second % every == 0 and second:
                self.step(policy, second, bounds)

    def step(self, policy: str, second: int, bounds: Bounds) -> None:
        used = self.used
        begin = max(second - bounds.window_seconds, self.changed_at or 0)
        window = sorted(got for got, _ in used[begin:])
        observation = Observation(
            claim="c",
            core_request=self.request,
            core_limit=self.limit,
            memory_mib=1,
            asked_core_limit=self.asked,
            lent_core=self.lent,
            measured_seconds=second - begin,
            core_mean=sum(window) / len(window),
            core_p95=window[int(0.95 * (len(window) - 1))],
            core_latest=used[-1][0],
            throttled_mean=sum(waited for _, waited in used[begin:]) / len(window),
            throttled_latest=used[-1][1],
            changed_at=self.changed_at,
        )
        if change := one(policy, observation, bounds, second):
            self.lent = change.after.get("lent_core", self.lent)
            self.limit = change.after.get("core_limit", self.limit)
            self.changed_at = second
            self.changes.append((second, change.kind, dict(change.after)))


HOURS = 3600


@settings(max_examples=examples(30), deadline=None)
@given(st.floats(0, 100), st.sampled_from(["feedback", "percentile"]))
def test_a_steady_load_comes_to_rest_and_stays_there(demand: float, policy: str) -> None:
    """Twelve hours: after the first steps, no change."""
    claim = Simulated(lambda second: demand)
    claim.run(policy, 2 * HOURS)
    first = len(claim.changes)
    assert first <= 4, claim.changes
    claim.run(policy, 2 * HOURS)
    assert len(claim.changes) == first, claim.changes


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(30, 1200), st.integers(30, 1200), st.floats(6, 100))
def test_a_load_that_comes_and_goes_is_followed_no_faster_than_the_cool_down(on: int, off: int, demand: float) -> None:
    """Six hours: core lent between two wakings was idle for a whole window, and limits do not follow each change."""
    claim = Simulated(lambda second: demand if second % (on + off) < on else 0.0)
    claim.run("feedback", 6 * HOURS)
    lent = [second for second, kind, _ in claim.changes if kind == "lend"]
    assert all(later - earlier >= BOUNDS.cool_down_seconds for earlier, later in pairwise(lent))
    given_back = [second for second, kind, _ in claim.changes if kind == "give-back"]
    assert len(given_back) <= len(lent) <= len(given_back) + 1
    limits = [after["core_limit"] for _, kind, after in claim.changes if kind == "limit"]
    assert len(limits) <= 2 * (6 * HOURS) // BOUNDS.cool_down_seconds
    if off < BOUNDS.window_seconds * 8 // 10:
        assert not lent, "it was never idle for a window"


def test_without_hysteresis_it_would_swing() -> None:
    """The control: without a cool-down and with a short window, an intermittent load makes limits oscillate."""
    hasty = replace(BOUNDS, cool_down_seconds=0, window_seconds=15)
    claim = Simulated(lambda second: 30.0 if second % 60 < 20 else 0.0)
    claim.run("feedback", 600, bounds=hasty)
    assert len(claim.changes) > 10
    calm = Simulated(lambda second: 30.0 if second % 60 < 20 else 0.0)
    calm.run("feedback", 600)
    assert not calm.changes
