"""Backfill: a later claim may start first if it delays no earlier one."""

import heapq
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from apps.scheduling.core.backfill import ExpectedRelease, HeadPlan, plan_head
from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.queue import Amounts, Ask, Queue, QueueEntry
from apps.scheduling.core.values import GpuState, Held, Placed, Refused, Request
from apps.scheduling.core.walk import Walk

POOL = Amounts(core_percent=400, memory_mib=400, gpus=4)


def machines(gpus: int = 2) -> Fleet:
    return Fleet(GpuState(f"g{index}", "n", index, "A10", 100, 100, 100) for index in range(gpus))


def claim(number: int, core: int, limit: int | None = None, *, count: int = 1, **facts: object) -> QueueEntry:
    request = Request(count, core, 1, **facts)  # type: ignore[arg-type]
    return QueueEntry(f"{number:02}", "acme", request, since=number, time_limit_seconds=limit)


def running(fleet: Fleet, number: int, core: int, ends: float, gpus: Sequence[str]) -> ExpectedRelease:
    item = ExpectedRelease(ends, f"r{number}", tuple(gpus), Request(len(gpus), core, 1))
    fleet.take(item.gpus, item.request)
    return item


def walk(fleet: Fleet, claims: Sequence[QueueEntry], ends: Sequence[ExpectedRelease], now: float = 0) -> Walk:
    queue = Queue([Ask((one,)) for one in claims], capacity=POOL, held={}, weights={})
    return Walk(fleet, queue, running=ends, now=now)


def outcomes(walked: Walk) -> dict[str, str]:
    told = {}
    for decision in walked:
        answer = decision.answer
        what = answer.reasons[0].code if isinstance(answer, Refused) else "placed"
        told[decision.ask.members[0].id] = what
    return told


def test_the_head_waits_at_the_earliest_end_that_lets_it_fit() -> None:
    fleet = machines()
    ends = [running(fleet, 1, 60, 300, ["g0"]), running(fleet, 2, 60, 200, ["g1"]), running(fleet, 3, 20, 100, ["g1"])]
    before = fleet.gpus()
    plan = plan_head(fleet, Ask((claim(1, 80),)), ends, now=50)
    assert plan is not None
    assert (plan.start, plan.gpus, dict(plan.withheld)) == (200.0, frozenset({"g1"}), {"g1": (0, 0)})
    assert fleet.gpus() == before


def test_what_will_not_be_given_back_by_then_is_kept() -> None:
    fleet = machines(1)
    ends = [running(fleet, 1, 50, 100, ["g0"])]
    plan = plan_head(fleet, Ask((claim(1, 80),)), ends, now=0)
    assert plan is not None
    assert plan.withheld["g0"][0] == 30


def test_without_time_limits_there_is_no_shadow_and_nothing_is_kept() -> None:
    fleet = machines(1)
    running(fleet, 1, 50, 100, ["g0"])
    walked = walk(fleet, [claim(1, 80), claim(2, 50)], [])
    assert outcomes(walked) == {"01": "gpu-core", "02": "placed"}
    assert walked.head_plan is None


def test_a_later_claim_passes_if_it_ends_in_time_or_touches_nothing_of_the_heads() -> None:
    for later, what in [
        (claim(2, 50, 100), "placed"),
        (claim(2, 50, 101), "kept-for-earlier"),
        (claim(2, 50), "kept-for-earlier"),
        (claim(2, 20), "placed"),
    ]:
        fleet = machines(1)
        ends = [running(fleet, 1, 50, 100, ["g0"])]
        assert outcomes(walk(fleet, [claim(1, 80), later], ends))["02"] == what, later


def test_passing_says_until_when_the_room_is_kept() -> None:
    fleet = machines(1)
    walked = walk(fleet, [claim(1, 80), claim(2, 50)], [running(fleet, 1, 50, 100, ["g0"])])
    answer = [decision.answer for decision in walked][1]
    assert isinstance(answer, Refused)
    assert "which starts at 1970-01-01 00:01:40 UTC" in answer.reasons[0].detail


def test_two_that_pass_share_what_the_head_does_not_need() -> None:
    """Eighty are requested and fifty are released: of the fifty free ones twenty are for any claim, once."""
    fleet = machines(1)
    ends = [running(fleet, 1, 50, 100, ["g0"])]
    told = outcomes(walk(fleet, [claim(1, 80), claim(2, 15), claim(3, 15), claim(4, 35, 90)], ends))
    assert told == {"01": "gpu-core", "02": "placed", "03": "kept-for-earlier", "04": "placed"}


def test_a_label_keeps_the_whole_gpu() -> None:
    """Twenty percent would be left over, but a label could exclude the head."""
    fleet = machines(1)
    ends = [running(fleet, 1, 50, 100, ["g0"])]
    walked = walk(fleet, [claim(1, 80), claim(2, 20, tenant="acme", anti_affinity="x")], ends)
    assert outcomes(walked)["02"] == "kept-for-earlier"


def test_what_is_undone_is_free_again_for_the_next() -> None:
    fleet = machines(1)
    walked = walk(fleet, [claim(1, 80), claim(2, 80)], [])
    decisions = iter(walked)
    first = next(decisions)
    assert not isinstance(first.answer, Refused)
    walked.undo(first)
    assert not isinstance(next(decisions).answer, Refused)


claims_to_come = st.lists(
    st.tuples(st.integers(1, 10), st.sampled_from([1, 1, 2]), st.none() | st.integers(1, 40)), min_size=1, max_size=12
)
at_work = st.lists(st.tuples(st.integers(2, 10), st.integers(0, 3), st.integers(1, 40)), min_size=1, max_size=6)


def play(limits: list[tuple[int, int, int]], asks: list[tuple[int, int, int | None]], *, guarded: bool) -> list[float]:
    """Return by how much each head started after its first shadow time, over the whole life of the queue."""
    fleet = machines(4)
    ends: list[tuple[float, str, ExpectedRelease]] = []
    for number, (tenth, gpu, end) in enumerate(limits):
        if fleet_has(fleet, f"g{gpu}", 10 * tenth):
            item = running(fleet, number, 10 * tenth, float(end), [f"g{gpu}"])
            heapq.heappush(ends, (item.ends_at, item.id, item))
    left = [claim(number, 10 * tenth, limit, count=count) for number, (tenth, count, limit) in enumerate(asks)]
    promised: dict[str, float] = {}
    delays, now = [], 0.0
    while True:
        walked = walk(fleet, left, [item for *_, item in ends], now)
        for decision in walked:
            (one,) = decision.ask.members
            if isinstance(decision.answer, Refused):
                if not guarded:
                    note(promised, walked.head_plan)
                    walked.head_plan = None
                continue
            delays += [max(0.0, now - promised.pop(one.id))] if one.id in promised else []
            left = [other for other in left if other.id != one.id]
            if one.time_limit_seconds is not None:
                back = ExpectedRelease(now + one.time_limit_seconds, one.id, decision.answer[0].gpus, one.request)
                heapq.heappush(ends, (back.ends_at, back.id, back))
        note(promised, walked.head_plan)
        if not left or not ends:
            # A head with a promised start that never starts is delayed without end.
            return delays + [float("inf") for _ in promised]
        now = ends[0][0]
        while ends and ends[0][0] <= now:
            *_, item = heapq.heappop(ends)
            fleet.give_back(item.gpus, item.request)


def fleet_has(fleet: Fleet, uuid: str, core: int) -> bool:
    return any(gpu.uuid == uuid and gpu.core_free >= core and gpu.memory_free_mib >= 1 for gpu in fleet.gpus())


def note(promised: dict[str, float], plan: HeadPlan | None) -> None:
    if plan is not None:
        promised.setdefault(plan.ask.members[0].id, plan.start)


@pytest.mark.slow
@given(at_work, claims_to_come)
@example([(5, 0, 10), (10, 1, 40), (10, 2, 40), (10, 3, 40)], [(8, 1, None), (5, 1, None)])
def test_backfill_never_delays_the_heads_shadow_start(
    limits: list[tuple[int, int, int]], asks: list[tuple[int, int, int | None]]
) -> None:
    assert not any(play(limits, asks, guarded=True))


def test_without_the_guard_the_head_is_delayed() -> None:
    """The control: a head is delayed without the guard."""
    limits = [(5, 0, 10), (10, 1, 40), (10, 2, 40), (10, 3, 40)]
    asks: list[tuple[int, int, int | None]] = [(8, 1, None), (5, 1, None)]
    assert play(limits, asks, guarded=False) == [30.0]


@pytest.mark.slow
@given(at_work, claims_to_come)
def test_walking_twice_over_the_same_tells_the_same(
    limits: list[tuple[int, int, int]], asks: list[tuple[int, int, int | None]]
) -> None:
    def once(turned: bool) -> list[tuple[str, tuple[Placed, ...] | Refused]]:
        fleet = machines(4)
        ends = [
            running(fleet, number, 10 * tenth, end, [f"g{gpu}"])
            for number, (tenth, gpu, end) in enumerate(limits)
            if fleet_has(fleet, f"g{gpu}", 10 * tenth)
        ]
        claims = [claim(number, 10 * tenth, limit, count=count) for number, (tenth, count, limit) in enumerate(asks)]
        walked = walk(fleet, claims[::-1] if turned else claims, ends[::-1] if turned else ends)
        return [(decision.ask.members[0].id, decision.answer) for decision in walked]

    assert once(False) == once(True)


def recorded_requests(fleet: Fleet) -> list[Request]:
    """Record each request that the fleet is asked to place from now on."""
    asked: list[Request] = []
    place = fleet.place

    def counting(request: Request, *, held: Held | None = None) -> Placed | Refused:
        asked.append(request)
        return place(request, held=held)

    fleet.place = counting  # type: ignore[method-assign]
    return asked


def test_requests_that_differ_in_nothing_that_matters_are_refused_as_one() -> None:
    fleet = machines(1)
    asked = recorded_requests(fleet)
    running(fleet, 1, 90, 100, ["g0"])
    claims = [claim(number, 20, None, key=str(number), tenant="acme") for number in range(50)]
    assert set(outcomes(walk(fleet, [replace(one) for one in claims], [])).values()) == {"gpu-core"}
    assert len(asked) == 1


def test_what_is_reserved_alike_is_refused_as_one_and_asked_anew_when_it_changes() -> None:
    fleet = machines(1)
    asked = recorded_requests(fleet)
    before: Held = {"g0": (90, 0)}
    now_free: Held = {"g0": (0, 0)}
    claims = [claim(number, 20, 1) for number in range(50)]
    queue = Queue([Ask((one,)) for one in claims], capacity=POOL, held={}, weights={})
    # The reservation ends while the walk is at its last claim.
    told = outcomes(Walk(fleet, queue, running=[], now=0, reserved=lambda one: now_free if one.id == "49" else before))
    assert {told[one.id] for one in claims[:49]} == {"reserved"}
    assert told["49"] == "placed"
    assert len(asked) < 10
