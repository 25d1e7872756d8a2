"""Estimates: the start of a queued claim with its basis, and the nearest change that would fit."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from apps.scheduling.core.backfill import ExpectedRelease
from apps.scheduling.core.estimates import (
    MOST_CLAIMS,
    Release,
    Standing,
    forecast,
    from_recent_rate,
    from_time_limits,
)
from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.nearest import nearest_changes
from apps.scheduling.core.queue import Amounts, Ask, QueueEntry
from apps.scheduling.core.values import GpuState, Placed, Request

POOL = Amounts(core_percent=200, memory_mib=200, gpus=2)
STANDING = Standing(POOL, {}, {})
HOUR = 3600.0


def machines(gpus: int = 1) -> Fleet:
    return Fleet(GpuState(f"g{index}", "n", index, "A10", 100, 100, 100) for index in range(gpus))


def claim(number: int, core: int, limit: int | None = None, **facts: object) -> QueueEntry:
    request = Request(1, core, 1)
    return QueueEntry(f"{number:02}", "acme", request, number, time_limit_seconds=limit, **facts)  # type: ignore[arg-type]


def taken(fleet: Fleet, core: int, ends: float, gpu: str = "g0") -> ExpectedRelease:
    item = ExpectedRelease(ends, f"r{ends}", (gpu,), Request(1, core, 1))
    fleet.take(item.gpus, item.request)
    return item


def test_the_queue_is_played_on_from_end_to_end() -> None:
    fleet = machines()
    ends = [taken(fleet, 100, 100)]
    waiting = [claim(1, 60, 50), claim(2, 60, 50), claim(3, 40, 10), claim(4, 60)]
    starts = forecast(fleet, waiting, ends, STANDING, now=0)
    # The second is the head by then, and the third ends before it would begin.
    assert starts == {"01": 100, "03": 100, "02": 150, "04": 200}


def test_what_never_ends_leaves_the_rest_without_a_start() -> None:
    fleet = machines()
    assert forecast(fleet, [claim(1, 60), claim(2, 60)], [], STANDING, now=5) == {"01": 5}


def test_a_start_time_is_waited_for_and_an_incomplete_gang_never_starts() -> None:
    gang = claim(2, 10, group="x", group_size=2)
    starts = forecast(machines(), [claim(1, 60, start_at=70), gang], [], STANDING, now=5)
    assert starts == {"01": 70}


def test_a_forecast_plays_no_more_than_its_bound() -> None:
    waiting = [claim(number, 1) for number in range(MOST_CLAIMS + 1)]
    assert len(forecast(machines(2), waiting, [], STANDING, now=0)) == MOST_CLAIMS


@given(
    st.lists(st.tuples(st.integers(1, 10), st.integers(1, 30)), max_size=8),
    st.lists(st.tuples(st.integers(1, 10), st.none() | st.integers(1, 30)), min_size=1, max_size=8),
)
def test_a_forecast_never_puts_more_on_a_gpu_than_it_has(
    limits: list[tuple[int, int]], asks: list[tuple[int, int | None]]
) -> None:
    ends: list[ExpectedRelease] = []
    fleet, free = machines(), 10
    for core, end in limits:
        if core <= free:
            free -= core
            ends.append(replace(taken(fleet, 10 * core, float(end)), id=f"r{len(ends)}"))
    waiting = [claim(number, 10 * core, limit) for number, (core, limit) in enumerate(asks)]
    starts = forecast(fleet, waiting, ends, STANDING, now=0)
    spans = [(0.0, item.ends_at, item.request.core_request) for item in ends] + [
        (starts[one.id], starts[one.id] + (one.time_limit_seconds or 10_000), one.request.core_request)
        for one in waiting
        if one.id in starts
    ]
    for moment, *_ in spans:
        assert sum(core for begin, end, core in spans if begin <= moment < end) <= 100


def test_an_estimate_from_time_limits_says_what_it_counts() -> None:
    estimate = from_time_limits(500, running=3, ahead=1, now=0)
    assert (estimate.at, estimate.basis) == (500, "time-limits")
    assert "3 claims that run, with 1 claim ahead" in estimate.detail
    assert "next scheduling cycle" in from_time_limits(0, running=3, ahead=0, now=0).detail


def test_a_rate_counts_what_was_large_enough_and_what_goes_first() -> None:
    freed = [Release(number * HOUR, Request(1, 50, 1)) for number in range(4)] + [Release(0, Request(1, 10, 1))]
    estimate = from_recent_rate(Ask((claim(9, 40),)), [80, 20], freed, since=0, now=10 * HOUR)
    # One place is its own, one the large claim's, a half the small one's; a place is free every 2.5 hours.
    assert (estimate.at, estimate.basis) == (10 * HOUR + 2.5 * 2.5 * HOUR, "recent-rate")


def test_too_few_are_no_rate_and_it_is_said_why() -> None:
    freed = [Release(0, Request(1, 50, 1))] * 2
    estimate = from_recent_rate(Ask((claim(9, 40),)), [], freed, since=0, now=24 * HOUR)
    assert (estimate.at, estimate.basis) == (None, "none")
    assert "in the last 24 hours only 2 claims of at least this size ended" in estimate.detail


gpu_states = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from(["A10", "H100"]), st.integers(0, 10), st.integers(0, 8)),
    max_size=5,
).map(
    lambda rows: [
        GpuState(f"g{index}", node, index, model, 8, 10 * core, memory)
        for index, (node, model, core, memory) in enumerate(rows)
    ]
)
asked = st.builds(
    Request,
    gpu_count=st.integers(1, 3),
    core_request=st.integers(1, 10).map(lambda tenth: 10 * tenth),
    memory_mib=st.integers(1, 9),
    gpu_model=st.none() | st.sampled_from(["A10", "H100"]),
)


@given(gpu_states, asked)
def test_each_suggestion_fits_and_is_the_most_that_does(gpus: list[GpuState], request: Request) -> None:
    fleet = Fleet(gpus)
    found = {item.field: item.value for item in nearest_changes(fleet, request)}
    for field in ("memory_mib", "core_request", "gpu_count"):
        if isinstance(fleet.place(request), Placed):
            assert found == {}
            return
        fitting = [
            value
            for value in range(1, getattr(request, field))
            if isinstance(fleet.place(replace(request, **{field: value})), Placed)  # type: ignore[arg-type]
        ]
        assert found.get(field) == max(fitting, default=None)
    any_model = isinstance(fleet.place(replace(request, gpu_model=None)), Placed)
    assert ("gpu_model" in found) == (request.gpu_model is not None and any_model)


def test_what_is_kept_for_others_is_not_suggested() -> None:
    fleet = machines()
    assert nearest_changes(fleet, Request(1, 100, 200), held={"g0": (0, 40)})[0].value == 60
