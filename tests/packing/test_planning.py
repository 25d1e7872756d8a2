"""Plans of packing: each step obeys every rule, and no pairing is much better, by brute force."""

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.packing.planning import Device, Rates, Running, Step, plan, predict

GIB = 1024


def device(number: int, **facts: Any) -> Device:
    """Return a whole GPU of one node."""
    return Device(**{
        "gpu": f"g{number}", "node": "n", "model": "A", "core_free": 50, "memory_free_mib": 12 * GIB, **facts
    })  # fmt: skip


def claim(number: int, core: float = 30.0, **facts: Any) -> Running:
    """Return a claim that was measured alone, and runs as then."""
    rates = Rates(100.0, core)
    return Running(**{
        "claim": f"c{number}", "gpu": f"g{number}", "core_request": 50, "memory_mib": 4 * GIB, "alone": rates,
        "now": rates, **facts,
    })  # fmt: skip


def pairs(
    devices: Sequence[Device], running: Sequence[Running], *, keep_percent: int = 90, most: int = 99
) -> list[Step]:
    return plan(devices, running, keep_percent=keep_percent, most_packed=most)


def test_two_claims_with_time_for_both_are_put_together() -> None:
    (step,) = pairs([device(0), device(1)], [claim(0, 40.0), claim(1, 50.0, memory_mib=2 * GIB)])
    assert step == Step("pack", "c1", "c0", "g0", 100.0), "the one with less memory moves"


def test_claims_that_would_lose_too_much_stay_where_they_are() -> None:
    assert predict(Rates(1, 60.0), Rates(1, 60.0)) == pytest.approx(100 / 1.2)
    assert not pairs([device(0), device(1)], [claim(0, 60.0), claim(1, 60.0)])
    assert len(pairs([device(0), device(1)], [claim(0, 60.0), claim(1, 60.0)], keep_percent=80)) == 1


def test_nothing_is_packed_while_nobody_waits() -> None:
    assert not pairs([device(0), device(1)], [claim(0), claim(1)], most=0)


@pytest.mark.parametrize(
    "why",
    [{"alone": None}, {"now": None}, {"wants": False}, {"apart": frozenset({"c1"})}, {"gpu": "elsewhere"}],
    ids=["never alone", "not measured now", "rests", "lost too much", "another pool"],
)
def test_a_claim_is_not_packed_if(why: dict[str, Any]) -> None:
    assert not pairs([device(0), device(1)], [claim(0, **why), claim(1)])


@pytest.mark.parametrize("of", [{"node": "m"}, {"model": "B"}, {"others": 1}, {"takes": False, "core_free": 0}])
def test_gpus_that_do_not_share(of: dict[str, Any]) -> None:
    assert not pairs([device(0, **of), device(1, takes=False)], [claim(0), claim(1)])


def test_a_claim_that_may_not_move_is_joined() -> None:
    (step,) = pairs([device(0), device(1)], [claim(0, memory_mib=1, may_move=False), claim(1)])
    assert (step.claim, step.to_gpu) == ("c1", "g0")
    assert not pairs([device(0), device(1)], [claim(0, may_move=False), claim(1, may_move=False)])


def beside(number: int, gpu: str, launches: float, **facts: Any) -> Running:
    """Return a claim that had 100 launches a second alone, and now has so many."""
    return claim(number, gpu=gpu, now=Rates(launches, 30.0), **facts)


def test_a_pair_of_which_one_loses_too_much_is_parted_to_a_free_gpu() -> None:
    pair = [beside(0, "g0", 95.0), beside(1, "g0", 89.0, memory_mib=1)]
    (step,) = pairs([device(0, core_free=0), device(1, core_free=100)], pair)
    assert step == Step("unpack", "c1", "c0", "g1", 89.0)
    assert not pairs([device(0, core_free=0)], pair), "there is no free GPU"
    kept = [beside(0, "g0", 95.0), beside(1, "g0", 90.0)]
    assert not pairs([device(0, core_free=0), device(1, core_free=100)], kept)


def test_a_claim_that_rests_is_no_reason_to_part() -> None:
    pair = [beside(0, "g0", 95.0), beside(1, "g0", 0.0, wants=False)]
    assert not pairs([device(0, core_free=0), device(1, core_free=100)], pair)


CORES = st.sampled_from([5.0, 20.0, 35.0, 50.0, 65.0, 80.0])


@st.composite
def scenes(draw: st.DrawFn) -> tuple[list[Device], list[Running]]:
    """Draw up to seven claims alone on GPUs of two nodes, with all kinds of reasons not to share."""
    count = draw(st.integers(0, 7))
    devices, running = [], []
    for number in range(count):
        devices.append(
            device(
                number, node=draw(st.sampled_from("nm")), core_free=draw(st.sampled_from([20, 50])),
                memory_free_mib=draw(st.sampled_from([2 * GIB, 9 * GIB])),
            )
        )  # fmt: skip
        running.append(
            claim(
                number, draw(CORES), core_request=draw(st.sampled_from([10, 40])),
                memory_mib=draw(st.sampled_from([GIB, 4 * GIB])), may_move=draw(st.booleans()),
                apart=frozenset(draw(st.sets(st.sampled_from([f"c{other}" for other in range(7)]), max_size=2))),
            )
        )  # fmt: skip
    return devices, running


def feasible(devices: Sequence[Device], one: Running, other: Running, keep_percent: int) -> bool:
    """Return True if the two may share, by the rules written a second time."""
    of = {item.gpu: item for item in devices}
    if of[one.gpu].node != of[other.gpu].node or other.claim in one.apart or one.claim in other.apart:
        return False
    assert one.alone is not None
    assert other.alone is not None
    total = one.alone.core + other.alone.core
    if total > 100 and 10_000 / total < keep_percent:
        return False
    return any(
        mover.may_move
        and mover.core_request <= of[stays.gpu].core_free
        and mover.memory_mib <= of[stays.gpu].memory_free_mib
        for mover, stays in ((one, other), (other, one))
    )


def most_pairs(claims: Sequence[str], allowed: set[frozenset[str]]) -> int:
    """Return the size of the largest pairing, by trying all."""
    if len(claims) < 2:
        return 0
    first, rest = claims[0], claims[1:]
    best = most_pairs(rest, allowed)
    for other in rest:
        if frozenset((first, other)) in allowed:
            best = max(best, 1 + most_pairs([one for one in rest if one != other], allowed))
    return best


@given(scenes(), st.sampled_from([60, 80, 90, 100]))
def test_plans_obey_the_rules_and_leave_no_pair(scene: tuple[list[Device], list[Running]], keep_percent: int) -> None:
    devices, running = scene
    steps = pairs(devices, running, keep_percent=keep_percent)
    of = {one.claim: one for one in running}
    for step in steps:
        assert step.keeps >= keep_percent
        assert of[step.claim].may_move
        assert step.to_gpu == of[step.partner].gpu
        assert feasible(devices, of[step.claim], of[step.partner], keep_percent)
    used = Counter(uid for step in steps for uid in (step.claim, step.partner))
    assert set(used.values()) <= {1}
    left = [one for one in running if one.claim not in used]
    assert not any(feasible(devices, one, other, keep_percent) for one, other in combinations(left, 2))
    allowed = {
        frozenset((one.claim, other.claim))
        for one, other in combinations(running, 2)
        if feasible(devices, one, other, keep_percent)
    }
    best = most_pairs([one.claim for one in running], allowed)
    assert 2 * len(steps) >= best


@given(st.lists(CORES, max_size=8), st.sampled_from([60, 80, 90, 100]))
def test_where_only_gpu_time_counts_no_pairing_has_more_pairs(cores: list[float], keep_percent: int) -> None:
    devices = [device(number) for number in range(len(cores))]
    running = [claim(number, core) for number, core in enumerate(cores)]
    allowed = {
        frozenset((one.claim, other.claim))
        for one, other in combinations(running, 2)
        if feasible(devices, one, other, keep_percent)
    }
    steps = pairs(devices, running, keep_percent=keep_percent)
    assert len(steps) == most_pairs([one.claim for one in running], allowed)


@given(scenes(), st.integers(0, 3))
def test_no_more_are_packed_than_wait(scene: tuple[list[Device], list[Running]], most: int) -> None:
    assert len(pairs(*scene, most=most)) <= most
