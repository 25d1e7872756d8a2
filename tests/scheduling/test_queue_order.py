"""The order of the queue: priority, weighted dominant shares, age; and its guarantees to tenants."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from apps.scheduling.core.queue import Amounts, Ask, Queue, QueueEntry, in_order
from apps.scheduling.core.values import Request

POOL = Amounts(core_percent=1000, memory_mib=1000, gpus=10)
TENANTS = ("acme", "globex", "initech")


def claim(number: int, tenant: str = "acme", *, core: int = 10, memory: int = 10, **facts: object) -> QueueEntry:
    return QueueEntry(f"{number:04}", tenant, Request(1, core, memory), since=number, **facts)  # type: ignore[arg-type]


def queue(
    claims: Iterable[QueueEntry],
    *,
    capacity: Amounts = POOL,
    held: dict[str, Amounts] | None = None,
    long_before: float | None = None,
    **weights: int,
) -> Queue:
    asks = [Ask((one,)) for one in claims]
    return Queue(asks, capacity=capacity, held=held or {}, weights=weights, long_before=long_before)


def ids(order: Iterable[Ask]) -> list[str]:
    return [ask.members[0].id for ask in order]


claims_of_all = st.lists(
    st.tuples(
        st.sampled_from(TENANTS),
        st.integers(1, 100),
        st.integers(1, 100),
        st.integers(-1, 1),
    ),
    max_size=25,
).map(
    lambda rows: [
        claim(number, tenant, core=core, memory=memory, priority=priority)
        for number, (tenant, core, memory, priority) in enumerate(rows)
    ]
)


@given(claims_of_all, st.randoms(use_true_random=False), st.integers(1, 5))
def test_the_order_does_not_depend_on_how_the_claims_come_in(
    claims: list[QueueEntry], random: Random, weight: int
) -> None:
    shuffled = list(claims)
    random.shuffle(shuffled)
    assert ids(in_order(queue(shuffled, acme=weight))) == ids(in_order(queue(claims, acme=weight)))


@given(claims_of_all, st.integers(1, 5))
def test_who_is_asked_is_furthest_behind_of_those_who_wait_at_the_highest_priority(
    claims: list[QueueEntry], weight: int
) -> None:
    line = queue(claims, acme=weight)
    left = list(claims)
    while (ask := line.next()) is not None:
        (asked,) = ask.members
        top = [one for one in left if one.priority == max(other.priority for other in left)]
        assert asked in top
        assert line.share(asked.tenant) == min(line.share(one.tenant) for one in top)
        assert asked.since == min(one.since for one in top if one.tenant == asked.tenant)
        left.remove(asked)
        if asked.since % 3:  # every third is refused
            line.record_placement(ask)
    assert not left


def test_a_refused_claim_leaves_its_tenant_first_in_line() -> None:
    line = queue([claim(1), claim(2), claim(3, "globex")], held={"globex": Amounts(core_percent=1)})
    first, second = line.next(), line.next()
    assert (first, second) == (Ask((claim(1),)), Ask((claim(2),)))


@given(st.integers(1, 9), st.integers(1, 9))
def test_tenants_get_parts_by_their_weights(one: int, other: int) -> None:
    claims = [claim(number, TENANTS[number % 2]) for number in range(400)]
    got = Counter(ask.tenant for ask in in_order(queue(claims, acme=one, globex=other))[: 10 * (one + other)])
    assert abs(got["acme"] - 10 * one) <= 1


def first_until_full(claims: list[QueueEntry], capacity: Amounts) -> dict[str, Amounts]:
    """Return each tenant's share when the pool, as one heap of resources, is full for the first time."""
    line = queue(claims, capacity=capacity)
    held = dict.fromkeys(TENANTS, Amounts())
    total = Amounts()
    while (ask := line.next()) is not None:
        after = total + ask.amounts
        if after.core_percent > capacity.core_percent or after.memory_mib > capacity.memory_mib:
            break
        total, held[ask.tenant] = after, held[ask.tenant] + ask.amounts
        line.record_placement(ask)
    return held


@given(st.integers(2, 10), st.integers(0, 20))
def test_splitting_a_claim_into_many_gains_less_than_one_of_it(pieces: int, head_start: int) -> None:
    others = [claim(1000 + number, "globex", core=10, memory=10) for number in range(200)]
    whole = [claim(number + 500 * (head_start % 2), core=10 * pieces, memory=10 * pieces) for number in range(40)]
    split = [claim(number + 500 * (head_start % 2)) for number in range(40 * pieces)]
    of_whole = first_until_full(whole + others, POOL)["acme"].core_percent
    of_split = first_until_full(split + others, POOL)["acme"].core_percent
    assert of_split <= of_whole + 10 * pieces


def test_by_age_alone_splitting_would_gain_nearly_everything() -> None:
    """The control: claims in the order of their arrival, a thousand small ones first."""
    others = [claim(1000 + number, "globex") for number in range(200)]
    split = [claim(number) for number in range(100)]
    by_age = sorted(split + others, key=lambda one: one.since)[:100]
    assert Counter(one.tenant for one in by_age) == {"acme": 100}
    assert first_until_full(split + others, POOL)["acme"].core_percent == 500


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=3, max_size=3))
def test_with_enough_to_ask_for_nobody_has_less_than_an_equal_part(sizes: list[tuple[int, int]]) -> None:
    """Check the sharing incentive, except for the last claims that are too large for the rest."""
    claims = [
        claim(1000 * index + number, tenant, core=core, memory=memory)
        for index, (tenant, (core, memory)) in enumerate(zip(TENANTS, sizes, strict=True))
        for number in range(1000 // max(core, memory) + 1)
    ]
    held = first_until_full(claims, POOL)
    largest = max(Amounts(core, memory).share_of(POOL, 1) for core, memory in sizes)
    for tenant in TENANTS:
        assert held[tenant].share_of(POOL, 1) >= 1 / 3 - 2 * largest


def test_whole_gpus_are_a_resource_of_their_own() -> None:
    wide = Amounts(core_percent=100_000, memory_mib=100_000, gpus=10)
    held = {"acme": Amounts.of(Request(1, 100, 1)), "globex": Amounts.of(Request(1, 99, 1))}
    order = in_order(queue([claim(1), claim(2, "globex")], capacity=wide, held=held))
    assert [ask.tenant for ask in order] == ["globex", "acme"]


def test_what_could_not_be_committed_gives_the_tenant_its_turn_back() -> None:
    line = queue([claim(1), claim(2), claim(3, "globex"), claim(4, "globex")], held={"acme": Amounts(core_percent=1)})
    first = line.next()
    assert first is not None
    line.record_placement(first)  # globex is ahead now
    second = line.next()
    assert second is not None
    line.record_placement(second)
    line.undo_placement(first)
    third = line.next()
    assert third is not None
    assert (first.tenant, second.tenant, third.tenant) == ("globex", "acme", "globex")


def test_a_gang_is_as_old_as_its_last_claim_and_as_urgent_as_its_least_urgent() -> None:
    gang = Ask((claim(1, priority=5), claim(9, priority=1)))
    assert (gang.since, gang.priority, gang.amounts.core_percent) == (9, 1, 20)
    assert gang.time_limit_seconds is None


HOLDS_MOST = {"acme": Amounts(core_percent=900)}


@given(claims_of_all, st.integers(0, 25))
def test_who_has_waited_long_goes_first_at_its_priority_by_age(claims: list[QueueEntry], before: int) -> None:
    waiting = [replace(one, waits_since=float(one.since)) for one in claims]
    order = [ask.members[0] for ask in in_order(queue(waiting, held=HOLDS_MOST, long_before=before))]
    assert sorted(order, key=lambda one: one.since) == waiting
    levels = [(-one.priority, one.since >= before) for one in order]
    assert levels == sorted(levels)
    long = [(-one.priority, one.since) for one in order if one.since < before]
    assert long == sorted(long)
    rest = [replace(one, waits_since=None) for one in order if one.since >= before]
    if len(rest) == len(order):
        assert [one.id for one in rest] == ids(in_order(queue(rest, held=HOLDS_MOST)))


def test_without_patience_everybodys_small_claims_pass_who_holds_most_for_ever() -> None:
    waiting = [replace(claim(n, "globex" if n else "acme"), waits_since=float(n)) for n in range(20)]
    assert ids(in_order(queue(waiting, held=HOLDS_MOST)))[-1] == "0000"
    assert ids(in_order(queue(waiting, held=HOLDS_MOST, long_before=1)))[0] == "0000"


def test_a_gang_has_waited_long_when_all_of_it_has() -> None:
    early, late, unknown = claim(1, waits_since=1.0), claim(2, waits_since=3.0), claim(3)
    assert Ask((early, late)).waits_since_before(4)
    assert not Ask((early, late)).waits_since_before(2)
    assert not Ask((early, unknown)).waits_since_before(4)


def test_asking_costs_little_more_for_each_claim_however_many_there_are() -> None:
    """Count how often a share is computed for ten thousand claims of five hundred tenants; not timed."""
    claims = [claim(number, f"t{number % 500}") for number in range(10_000)]
    line = queue(claims)
    calls = 0
    original = line.share

    def counting(tenant: str) -> float:
        nonlocal calls
        calls += 1
        return original(tenant)

    line.share = counting  # type: ignore[method-assign]
    assert len(in_order(line)) == 10_000
    assert calls <= 2 * 10_000
