"""The calendar's decisions: bookings never exceed a GPU, and no placement conflicts with a reservation."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.scheduling.core import calendar
from apps.scheduling.core.calendar import CLAIM, FOREVER, OUTSIDE, RESERVATION, Hold
from apps.scheduling.core.placement import place
from apps.scheduling.core.values import GpuState, Placed, Refused, Request
from tests.matrix import examples

MEMORY = 1000


def gpu(uuid: str, node: str = "n1", core_free: int = 100, memory_free_mib: int = MEMORY) -> GpuState:
    return GpuState(uuid, node, int(uuid[1:]), "A10", MEMORY, core_free, memory_free_mib)


def hold(gpu: str, core: int, begin: int, end: int, kind: str = RESERVATION, **facts: object) -> Hold:
    holder = str(facts.pop("holder", f"{kind}-{gpu}-{begin}"))
    return replace(Hold(gpu, core, core, begin, end, kind, holder, "acme"), **facts)  # type: ignore[arg-type]


FLEET = [gpu("g0"), gpu("g1"), gpu("g2", "n2")]
HALF = Request(1, 50, 1)


def test_the_peak_is_the_most_at_one_time_and_not_the_sum() -> None:
    holds = [hold("g0", 60, 0, 10), hold("g0", 60, 10, 20), hold("g0", 30, 5, 15)]
    assert calendar.peak(holds, 0, 20) == (90, 90)
    assert calendar.peak(holds, 15, 20) == (60, 60)
    assert calendar.peak(holds, 20, 30) == (0, 0)


def test_a_refusal_names_who_is_in_the_way_until_when_and_the_next_window() -> None:
    holds = [hold(item.uuid, 60, 0, 100, holder="r1") for item in FLEET]
    holds.append(hold("g2", 60, 100, FOREVER, CLAIM, holder="c1"))
    assert isinstance(calendar.book(FLEET, holds, HALF, 10, 20), Refused)
    found = calendar.obstacles(FLEET, holds, HALF, 10, 20)
    assert [(item.holder, item.gpus, item.until_us) for item in found] == [("r1", 3, 100)]
    ended = calendar.obstacles(FLEET, holds, Request(1, 50, 1), 100, 120)
    assert [(item.holder, item.until_us) for item in ended] == [("c1", None)]
    window = calendar.windows(FLEET, holds, HALF, length=10, after=10, count=3)[0]
    assert (window.begin_us, window.end_us) == (100, 110)
    assert set(window.gpus) <= {"g0", "g1"}


def test_several_gpus_wait_for_the_node_that_has_them_first() -> None:
    holds = [hold("g0", 100, 0, 50), hold("g1", 100, 30, 80)]
    windows = calendar.windows(FLEET, holds, Request(2, 100, 1), length=20, after=0, count=2)
    assert [(item.begin_us, item.gpus) for item in windows] == [(80, ("g0", "g1"))]


def test_what_is_used_without_a_claim_is_in_the_way_of_a_booking_and_counts_once_for_who_runs() -> None:
    """Use without a claim may exceed the GPU: no quota limits it."""
    used = [hold(uuid, core, 0, FOREVER, OUTSIDE, holder=OUTSIDE) for uuid, core in (("g0", 60), ("g1", 130))]
    answer = calendar.book(FLEET, used, HALF, 10, 20)
    assert isinstance(answer, Placed)
    assert answer.gpus == ("g2",)
    assert calendar.book(FLEET[:2], used, HALF, 10, 20) != answer
    [found] = calendar.obstacles(FLEET[:2], used, HALF, 10, 20)
    assert (found.kind, found.gpus, found.until_us) == (OUTSIDE, 2, None)
    # 40 of g0 are free now, of which 30 are booked from 50 on.
    assert calendar.withheld([used[0], hold("g0", 30, 50, 90)], 10, 60) == {"g0": (30, 30)}


def test_a_claim_that_is_over_before_a_reservation_begins_is_not_in_its_way() -> None:
    running = hold("g0", 60, 0, 40, CLAIM)
    reserved = hold("g0", 80, 50, 90)
    # 40 are free now; a claim that ends at 45 may use all of them, one that ends at 60 only 20.
    assert calendar.withheld([running, reserved], 10, 45) == {}
    assert calendar.withheld([running, reserved], 10, 60) == {"g0": (20, 20)}


def test_control_what_runs_on_into_the_reservation_would_be_counted_twice_without_the_sum_over_time() -> None:
    running = hold("g0", 60, 0, 40, CLAIM)
    reserved = hold("g0", 80, 50, 90)
    naive = 100 - running.core - reserved.core
    assert naive < 0, "by plain subtraction even a claim of one percent would be refused, though 20 are free throughout"


def test_a_borrower_counts_only_where_nothing_is_reserved() -> None:
    borrower = hold("g0", 80, 0, FOREVER, CLAIM, yields=True)
    reserved = hold("g0", 60, 50, 90)
    assert calendar.peak([borrower, reserved], 0, 100) == (80, 80)
    assert isinstance(calendar.book([gpu("g0")], [borrower], HALF, 0, 10), Placed)
    assert isinstance(calendar.book([gpu("g0")], [replace(borrower, yields=False)], HALF, 0, 10), Refused)


def test_only_borrowers_that_are_in_the_way_go_and_the_last_ones_first() -> None:
    first, second, third = (hold("g0", 30, 0, FOREVER, CLAIM, holder=f"b{number}", yields=True) for number in range(3))
    reserved = hold("g0", 50, 20, 90)
    assert calendar.to_yield([reserved, first, second, third], {"g0": MEMORY}, 10, 21) == {"b1", "b2"}
    assert calendar.to_yield([reserved, first, second, third], {"g0": MEMORY}, 10, 20) == set()


def test_claims_of_a_reservation_share_its_room_and_no_more() -> None:
    reserved = hold("g0", 60, 0, 90, holder="r1")
    inside = hold("g0", 40, 0, 90, CLAIM, within="r1")
    assert calendar.peak([reserved, inside], 0, 10) == (60, 60)
    left = calendar.room_within([gpu("g0", core_free=60), gpu("g1")], [reserved, inside], "r1")
    assert [(item.uuid, item.core_free) for item in left] == [("g0", 20)]


def test_a_profile_tells_every_step_once() -> None:
    holds = [hold("g0", 60, 0, 10), hold("g0", 60, 10, 20), hold("g0", 30, 15, 18)]
    assert calendar.profile(holds, 0, 30) == [(0, 15, 60, 60), (15, 18, 90, 90), (18, 20, 60, 60), (20, 30, 0, 0)]


# Properties. Times are small so that windows overlap often.

windows = st.tuples(st.integers(0, 30), st.integers(1, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))
requests = st.builds(Request, st.integers(1, 2), st.integers(1, 100), st.integers(1, MEMORY))


def taken_at(holds: list[Hold], uuid: str, moment: int) -> tuple[int, int]:
    """Count moment by moment, unlike the core."""
    there = [hold for hold in holds if hold.gpu == uuid and hold.begin_us <= moment < hold.end_us]
    return sum(hold.core for hold in there), sum(hold.memory_mib for hold in there)


def booked(wanted: list[tuple[tuple[int, int], Request]], *, blind: bool = False) -> list[Hold]:
    """Book one after the other; `blind` ignores earlier bookings."""
    holds: list[Hold] = []
    for number, ((begin, end), request) in enumerate(wanted):
        answer = calendar.book(FLEET, [] if blind else holds, request, begin, end)
        if isinstance(answer, Placed):
            holds += [
                Hold(uuid, request.core_request, request.memory_mib, begin, end, RESERVATION, f"r{number}", "acme")
                for uuid in answer.gpus
            ]
    return holds


def passes(holds: list[Hold]) -> bool:
    return any(
        core > 100 or memory > MEMORY
        for item in FLEET
        for moment in range(50)
        for core, memory in [taken_at(holds, item.uuid, moment)]
    )


@pytest.mark.slow
@given(st.lists(st.tuples(windows, requests), max_size=12))
def test_no_bookings_ever_pass_what_a_gpu_has(wanted: list[tuple[tuple[int, int], Request]]) -> None:
    assert not passes(booked(wanted))


def test_control_bookings_that_do_not_see_one_another_pass_it() -> None:
    assert passes(booked([((0, 10), Request(1, 60, 1))] * 2, blind=True))


@pytest.mark.slow
@given(st.lists(st.tuples(windows, requests), max_size=8), windows, requests)
def test_the_earliest_window_fits_and_none_before_it(
    wanted: list[tuple[tuple[int, int], Request]], window: tuple[int, int], request: Request
) -> None:
    holds, length = booked(wanted), window[1] - window[0]
    found = calendar.windows(FLEET, holds, request, length=length, after=window[0], count=1)
    fits = [
        begin
        for begin in range(window[0], 60)
        if isinstance(calendar.book(FLEET, holds, request, begin, begin + length), Placed)
    ]
    assert found[0].begin_us == fits[0]


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(
    st.lists(st.tuples(windows, requests), max_size=8),
    st.lists(st.tuples(st.integers(0, 30), st.one_of(st.none(), st.integers(1, 20)), requests), max_size=8),
)
def test_nothing_placed_is_ever_in_a_reservations_way(
    wanted: list[tuple[tuple[int, int], Request]], claims: list[tuple[int, int | None, Request]]
) -> None:
    holds, arrived = booked(wanted), sorted(claims, key=lambda claim: claim[0])
    for number, (now, length, request) in enumerate(arrived):
        end = FOREVER if length is None else now + length
        running = [hold for hold in holds if hold.kind == CLAIM]
        free = [
            gpu(item.uuid, item.node, 100 - core, MEMORY - memory)
            for item in FLEET
            for core, memory in [taken_at(running, item.uuid, now)]
        ]
        answer = place(free, request, held=calendar.withheld(holds, now, end))
        if isinstance(answer, Placed):
            holds += [
                Hold(uuid, request.core_request, request.memory_mib, now, end, CLAIM, f"c{number}", "acme")
                for uuid in answer.gpus
            ]
    assert not passes(holds)


def test_control_a_claim_placed_without_regard_to_reservations_is_in_their_way() -> None:
    holds = [hold("g0", 60, 20, 30)]
    assert isinstance(place([gpu("g0")], HALF), Placed)
    assert passes([*holds, hold("g0", 50, 0, FOREVER, CLAIM)])
    assert isinstance(place([gpu("g0")], HALF, held=calendar.withheld(holds, 0, FOREVER)), Refused)
