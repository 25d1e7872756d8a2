"""The churn benchmark: every claim starts once, and the figures match the events."""

import pytest

from apps.scheduling.core.values import GpuState, Request
from benchmarks.churn.figures import figures
from benchmarks.churn.load import Arrival, Load
from benchmarks.churn.replay import Course, jain, replay
from benchmarks.churn.schedulers import Fifo, Rounds, Scheduler

HOUR = 3600.0
WHOLE, PAIR = Request(1, 100, 0), Request(2, 100, 0)


def load(*arrivals: tuple[str, Request, float, float, int | None]) -> Load:
    gpus = tuple(GpuState(f"node-0-{index}", "node-0", index, "A100", 0, 100, 0) for index in range(2))
    rows = [
        Arrival(number, tenant, request, at * HOUR, hours * HOUR, limit)
        for number, (tenant, request, at, hours, limit) in enumerate(arrivals)
    ]
    return Load(gpus, tuple(rows), 10 * HOUR)


def starts(load: Load, scheduler: Scheduler) -> list[float]:
    course = replay(load, scheduler)
    return [course.started[number] / HOUR for number in range(len(load.arrivals))]


# One GPU is in use for four hours; a pair waits for it, and behind it a claim for the other GPU.
BLOCKED = load(("a", WHOLE, 0, 4, None), ("b", PAIR, 1, 1, None), ("c", WHOLE, 2, 3, None))


def test_first_come_first_served_lets_all_wait_for_one() -> None:
    assert starts(BLOCKED, Fifo(BLOCKED.gpus, "binpack", passing=False)) == [0, 4, 5]


def test_passing_lets_later_ones_go_first() -> None:
    assert starts(BLOCKED, Fifo(BLOCKED.gpus, "binpack", passing=True)) == [0, 5, 2]


def test_the_rounds_keep_room_where_time_limits_are_known() -> None:
    limits = load(
        ("a", WHOLE, 0, 4, 14_400), ("b", PAIR, 1, 1, 3600), ("c", WHOLE, 2, 3, 10_800), ("c", WHOLE, 2, 1, 3600)
    )
    assert starts(limits, Rounds(limits.gpus)) == [0, 4, 5, 2]
    assert starts(BLOCKED, Rounds(BLOCKED.gpus)) == [0, 5, 2]


def test_the_tenant_that_holds_least_goes_first() -> None:
    claims = load(*[("a", WHOLE, 0, 1, None)] * 3, ("b", WHOLE, 0.5, 1, None))
    assert starts(claims, Rounds(claims.gpus)) == [0, 0, 1, 1]
    pressed = load(
        ("a", WHOLE, 0, 3, None), ("a", WHOLE, 0, 1, None), *[("a", WHOLE, 0.1, 1, None)], ("b", WHOLE, 0.5, 1, None)
    )
    assert starts(pressed, Rounds(pressed.gpus)) == [0, 0, 2, 1]


def test_the_figures_are_those_of_what_happened() -> None:
    course: Course = replay(BLOCKED, Fifo(BLOCKED.gpus, "binpack", passing=False))
    found = figures(course)
    assert found["wait, mean"] == pytest.approx((0 + 180 + 180) / 3)
    assert found["GPU-hours served"] == pytest.approx(4 + 2 + 3)
    assert found["utilisation %"] == pytest.approx(100 * 9 / 20)
    # From hour 1 to hour 4 one GPU of two was in use, from 4 to 5 both, and all that time a claim waited.
    assert found["while some wait %"] == pytest.approx(100 * 5 / 8)


def test_fairness_is_one_where_all_have_alike() -> None:
    assert jain([2, 2, 2]) == pytest.approx(1)
    assert jain([3, 0, 0]) == pytest.approx(1 / 3)
