"""Fair share that remembers: decay by hand and as Slurm has it, its laws, and what it does to the queue's order."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.scheduling.core.fair_share import (
    NO_PAST,
    Past,
    decay,
    fair_share_factor,
    standings,
    weight_of,
)
from apps.scheduling.core.queue import Amounts, Ask, Queue, QueueEntry, in_order
from apps.scheduling.core.values import Request

HOUR, DAY, WEEK = 3600.0, 86_400.0, 604_800.0
POOL = Amounts(core_percent=1000, memory_mib=10_000, gpus=10)


def claims(tenant: str, count: int, *, first: int, gpus: int = 1, core: int = 100) -> list[QueueEntry]:
    return [
        QueueEntry(f"{tenant}-{number:04}", tenant, Request(gpus, core, 10 * core), since=first + number)
        for number in range(count)
    ]


def order(
    waiting: list[QueueEntry], past: dict[str, Past], *, held: dict[str, Amounts] | None = None, **weights: int
) -> list[str]:
    queue = Queue([Ask((one,)) for one in waiting], capacity=POOL, held=held or {}, weights=weights, past=past)
    return [ask.tenant for ask in in_order(queue)]


# (begin, end in hours before now, GPUs, half-life in hours, average by hand in GPUs)
BY_HAND = [
    # One half-life up to now: 1 - 1/2.
    (24, 0, 1, 24, 0.5),
    # The half-life before it: 1/2 - 1/4.
    (48, 24, 1, 24, 0.25),
    # Two half-lives, four GPUs: 4 x (1 - 1/4).
    (48, 0, 4, 24, 3.0),
    # A week of all eight GPUs that ended a week ago, with Slurm's default: 8 x (1/2 - 1/4).
    (336, 168, 8, 168, 2.0),
    # Three of four half-lives past: 2 x (1/8 - 1/16).
    (4, 3, 2, 1, 0.125),
    # Half a half-life: 1 - 1/sqrt(2).
    (12, 0, 1, 24, 0.2928932),
    # Nothing was held, and no time passed.
    (24, 0, 0, 24, 0.0),
    (5, 5, 8, 24, 0.0),
]


@pytest.mark.parametrize(("begin", "end", "gpus", "half_life", "average"), BY_HAND)
def test_averages_are_those_of_a_table_by_hand(
    begin: float, end: float, gpus: int, half_life: float, average: float
) -> None:
    weight = weight_of(-begin * HOUR, -end * HOUR, at=0, half_life=half_life * HOUR)
    assert gpus * weight == pytest.approx(average, abs=1e-7)
    held = NO_PAST.after((begin - end) * HOUR, half_life=half_life * HOUR, core_percent=gpus)
    assert held.after(end * HOUR, half_life=half_life * HOUR).core_percent == pytest.approx(average, abs=1e-7)


def test_standings_are_those_of_a_table_by_hand() -> None:
    """Two tenants of weights 1 and 3: one used a GPU yesterday, the other one today; the half-life is a day."""
    usages = {"acme": 1 / 2 - 1 / 4, "globex": 1 - 1 / 2}
    found = standings(usages, {"acme": 1, "globex": 3})
    assert (found["acme"].share, found["globex"].share) == (1 / 4, 3 / 4)
    assert found["acme"].usage == pytest.approx(1 / 3)
    assert found["globex"].usage == pytest.approx(2 / 3)
    assert found["acme"].factor == pytest.approx(0.3968503)  # 2^(-4/3)
    assert found["globex"].factor == pytest.approx(0.5400299)  # 2^(-8/9)
    assert standings({}, {"acme": 1})["acme"].factor == 1


# The example of https://slurm.schedmd.com/classic_fair_share.html: effective usage, share, factor.
SLURM = [
    (0.3875, 0.3, 0.408479),
    (0.275, 0.05, 0.022097),
    (0.15, 0.05, 0.125000),
    (0.25, 0.25, 0.500000),
    (0.1458, 0.35, 0.749154),
]


@pytest.mark.parametrize(("usage", "share", "factor"), SLURM)
def test_factors_are_those_of_slurms_example(usage: float, share: float, factor: float) -> None:
    assert fair_share_factor(usage, share) == pytest.approx(factor, abs=1e-4)


def test_slurms_dampening_and_a_tenant_without_a_share() -> None:
    assert fair_share_factor(0.5, 0.25, dampening=2) == 0.5
    assert fair_share_factor(0.5, 0) == 0


def slurms_usage(seconds: list[float], *, period: float, half_life: float) -> float:
    """Return U_H = U_current + D U_last + D D U_before + …, D the factor of one period; oldest first."""
    factor, total = 0.5 ** (period / half_life), 0.0
    for used in seconds:
        total = total * factor + used
    return total


@given(st.lists(st.tuples(st.integers(0, 64), st.integers(0, 64)), min_size=1, max_size=40))
def test_normalized_usage_is_slurms(hours: list[tuple[int, int]]) -> None:
    """Slurm decays every five minutes (PriorityCalcPeriod); parts of the whole are the same."""
    period, half_life = 300.0, WEEK
    slurm = [slurms_usage([hour[who] * period for hour in hours for _ in range(12)], period=period, half_life=half_life)
             for who in (0, 1)]  # fmt: skip
    past = [NO_PAST, NO_PAST]
    for hour in hours:
        past = [one.after(HOUR, half_life=half_life, core_percent=gpus) for one, gpus in zip(past, hour, strict=True)]
    ours = standings({"a": past[0].core_percent, "b": past[1].core_percent}, {})
    if sum(slurm):
        assert ours["a"].usage == pytest.approx(slurm[0] / sum(slurm), abs=1e-9)


amounts = st.floats(0, 1e5, allow_nan=False)
times = st.floats(0, 30 * DAY)
half_lives = st.floats(HOUR, 365 * DAY)


@given(amounts, amounts, times, times, half_lives)
def test_splitting_an_interval_changes_nothing(before: float, held: float, one: float, two: float, h: float) -> None:
    past = Past(before, before)
    split = past.after(one, half_life=h, core_percent=held).after(two, half_life=h, core_percent=held)
    whole = past.after(one + two, half_life=h, core_percent=held)
    assert split.core_percent == pytest.approx(whole.core_percent, rel=1e-9, abs=1e-9)
    parts = weight_of(0, one, at=one + two, half_life=h) + weight_of(one, one + two, at=one + two, half_life=h)
    assert parts == pytest.approx(weight_of(0, one + two, at=one + two, half_life=h), abs=1e-12)


@given(amounts, half_lives)
def test_a_half_life_halves(before: float, h: float) -> None:
    assert Past(before).after(h, half_life=h).core_percent == pytest.approx(before / 2)
    assert decay(0, h) == 1


@given(amounts, times, half_lives)
def test_who_holds_the_same_for_ever_has_that_average(held: float, seconds: float, h: float) -> None:
    past = Past(held, held).after(seconds, half_life=h, core_percent=held, memory_mib=held)
    assert past.core_percent == pytest.approx(held)
    assert past.memory_mib == pytest.approx(held)


usages = st.dictionaries(st.sampled_from("abcdef"), st.floats(1e-3, 1e6), min_size=1)


@given(usages, st.integers(1, 9), st.floats(1e-3, 1e3))
def test_a_scale_changes_no_standing(usage: dict[str, float], weight: int, scale: float) -> None:
    weights = {name: weight + number for number, name in enumerate(sorted(usage))}
    scaled = standings({name: value * scale for name, value in usage.items()}, weights)
    for name, standing in standings(usage, weights).items():
        assert scaled[name].usage == pytest.approx(standing.usage)
        assert scaled[name].share == standing.share
    assert sum(one.share for one in scaled.values()) == pytest.approx(1)
    assert sum(one.usage for one in scaled.values()) == pytest.approx(1)


@given(usages, st.floats(1e-3, 1e6))
def test_more_use_never_raises_the_factor(usage: dict[str, float], more: float) -> None:
    name = min(usage)
    before, after = standings(usage, {}), standings(usage | {name: usage[name] + more}, {})
    assert after[name].factor <= before[name].factor
    assert all(after[other].factor >= before[other].factor for other in usage if other != name)


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 9)), min_size=2, max_size=6),
)
def test_where_nobody_holds_anything_the_order_is_slurms(tenants: list[tuple[int, int]]) -> None:
    names = [f"t{number}" for number in range(len(tenants))]
    past = {name: Past(core) for name, (core, _) in zip(names, tenants, strict=True)}
    weights = {name: weight for name, (_, weight) in zip(names, tenants, strict=True)}
    waiting = [claims(name, 1, first=number)[0] for number, name in enumerate(names)]
    queue = Queue([Ask((one,)) for one in waiting], capacity=POOL, held={}, weights=weights, past=past)
    asked = []
    while (ask := queue.next()) is not None:  # each is refused
        asked.append(ask.tenant)
    found = standings({name: one.core_percent for name, one in past.items()}, weights)
    for one, other in pairwise(asked):
        assert found[one].factor >= found[other].factor * (1 - 1e-12)


@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 9))
def test_equal_shares_compare_as_equal(core: int, one: int, other: int) -> None:
    """Each has used as much as its weight, so that only age decides between them."""
    past = {"a": Past(core * one / 1024), "b": Past(core * other / 1024)}
    waiting = claims("b", 1, first=1) + claims("a", 1, first=2)
    assert order(waiting, past, a=one, b=other)[0] == "b"


def test_who_used_less_in_the_past_goes_first_although_it_came_later() -> None:
    waiting = claims("heavy", 3, first=1) + claims("light", 3, first=100)
    past = {"heavy": Past(core_percent=400), "light": Past(core_percent=100)}
    assert order(waiting, past) == ["light"] * 3 + ["heavy"] * 3
    assert order(waiting, {})[0] == "heavy"  # the control: without a memory age decides


def test_memory_that_was_held_counts_as_the_dominant_resource() -> None:
    waiting = claims("core", 1, first=1) + claims("memory", 1, first=2)
    past = {"core": Past(core_percent=300), "memory": Past(core_percent=10, memory_mib=4000)}
    assert order(waiting, past) == ["core", "memory"]
    assert order(waiting, past | {"memory": Past(core_percent=10, memory_mib=2000)}) == ["memory", "core"]


def test_a_tenant_without_a_past_cannot_take_everything() -> None:
    """The newcomer gets as many of ten GPUs as the other one held on average, then both in turn."""
    waiting = claims("old", 20, first=1) + claims("new", 20, first=100)
    past = {"old": Past(core_percent=400, memory_mib=4000)}
    assert Counter(order(waiting, past)[:10]) == {"new": 7, "old": 3}
    # The control: by history alone, which placements of the same moment do not change, it takes all ten.
    by_history = sorted(waiting, key=lambda one: (past.get(one.tenant, NO_PAST).core_percent, one.since))
    assert {one.tenant for one in by_history[:10]} == {"new"}


def simulate(*, hours: int, remembers: bool, size: tuple[int, int], weights: dict[str, int]) -> dict[str, int]:
    """Return core-hours: both tenants always have claims of an hour of this size (GPUs, core), those of acme older."""
    past = {"acme": Past(core_percent=1000, memory_mib=10_000), "globex": NO_PAST}
    got: Counter[str] = Counter()
    gpus, core = size
    enough = 1000 // (gpus * core)
    for hour in range(hours):
        waiting = claims("acme", enough, first=1, gpus=gpus, core=core)
        waiting += claims("globex", enough, first=1000 + hour, gpus=gpus, core=core)
        queue = Queue(
            [Ask((one,)) for one in waiting],
            capacity=POOL, held={}, weights=weights, past=past if remembers else None,
        )  # fmt: skip
        held: Counter[str] = Counter()
        while (ask := queue.next()) is not None:
            if sum(held.values()) + gpus * core <= 1000:
                held[ask.tenant] += gpus * core
                queue.record_placement(ask)
        if not hour and remembers:
            assert held["globex"] > held["acme"]
        if hour >= 240:  # ten half-lives make up for the past of the beginning
            got += held
        for name, one in past.items():
            past[name] = one.after(HOUR, half_life=DAY, core_percent=held[name], memory_mib=10 * held[name])
    return dict(got)


@pytest.mark.parametrize("size", [(1, 10), (10, 100)])
def test_long_run_shares_converge_to_the_weights(size: tuple[int, int]) -> None:
    got = simulate(hours=740, remembers=True, size=size, weights={"acme": 1, "globex": 3})
    assert got["globex"] / got["acme"] == pytest.approx(3, rel=0.06)


def test_without_a_memory_claims_for_the_whole_pool_starve_whoever_asks_later() -> None:
    got = simulate(hours=340, remembers=False, size=(10, 100), weights={"acme": 1, "globex": 3})
    assert got == {"acme": 100_000}


def test_priority_and_patience_go_before_shares() -> None:
    urgent = [replace(one, priority=1) for one in claims("heavy", 1, first=50)]
    long = [replace(one, waits_since=0.0) for one in claims("patient", 1, first=60)]
    past = {"heavy": Past(core_percent=900), "patient": Past(core_percent=900)}
    queue = Queue(
        [Ask((one,)) for one in [*claims("light", 1, first=1), *urgent, *long]],
        capacity=POOL, held={}, weights={}, past=past, long_before=10,
    )  # fmt: skip
    assert [ask.tenant for ask in in_order(queue)] == ["heavy", "patient", "light"]
