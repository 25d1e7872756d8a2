"""Decisions of the rotation: invariants of every plan, and hours of slices in made-up time."""

from collections import Counter
from dataclasses import replace
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from apps.suspension.rotation.planning import (
    Member,
    Rules,
    Scene,
    SharedGpu,
    Swap,
    in_order,
    plan,
    reach,
    seconds_in,
    seconds_out,
    share,
    slice_length,
)
from tests.matrix import examples

GIB = 1024
CARD = 80 * GIB
RULES = Rules(oversubscribe=3, slice_seconds=60)


def make_gpus(inside: list[Member], out: list[Member], count: int, per_node: int = 2) -> list[SharedGpu]:
    """Return the GPUs as these claims leave them."""
    made = []
    for number in range(count):
        key = f"g{number}"
        here = [one for one in inside if key in one.gpus]
        all_here = [*here, *(one for one in out if key in one.gpus)]
        made.append(
            SharedGpu(
                key,
                f"n{number // per_node}",
                CARD,
                100 - sum(one.core for one in here),
                CARD - sum(one.memory_mib for one in here),
                sum(one.core for one in all_here),
                sum(one.memory_mib for one in all_here),
            )
        )
    return made


@st.composite
def pools(draw: st.DrawFn) -> tuple[list[SharedGpu], list[Member], list[Member]]:
    """Return GPUs, the claims in (which fit), and those that wait: out, or new."""
    count = draw(st.integers(1, 4))
    inside: list[Member] = []
    waiting: list[Member] = []
    for number in range(draw(st.integers(1, 9))):
        width = draw(st.integers(1, min(2, count)))
        first = draw(st.integers(0, count - width))
        gpus = tuple(f"g{at}" for at in range(first, first + width))
        one = Member(
            f"c{number}",
            core=draw(st.sampled_from([0, 10, 30, 60, 100])),
            memory_mib=draw(st.sampled_from([5, 20, 40, 60, 80])) * GIB,
            gpu_count=width,
            gpus=gpus,
            allowed=frozenset(f"g{at}" for at in range(count)),
            priority=draw(st.sampled_from([0, 0, 0, 5])),
            served=draw(st.sampled_from([None, 0.0, 50.0, 400.0, 5000.0])),
            since=draw(st.sampled_from([0.0, 900.0, 990.0])),
            draws=(draw(st.sampled_from(["n0", "n1"])), "acme"),
            stays=draw(st.integers(0, 4)) == 0,
        )
        free = {gpu.key: gpu for gpu in make_gpus(inside, [], count)}
        if all(free[key].core_free >= one.core and free[key].memory_free_mib >= one.memory_mib for key in gpus):
            inside.append(one)
        elif one.served is None:
            waiting.append(replace(one, gpus=()))
        else:
            waiting.append(one)
    if draw(st.booleans()):
        # A node that cannot move programs.
        moves = False
        waiting = [replace(one, allowed=frozenset()) if one.gpus else one for one in waiting]
    else:
        moves = True
        waiting = [replace(one, allowed=one_node(one, count)) if one.gpus else one for one in waiting]
    out = [one for one in waiting if one.gpus]
    made = make_gpus(inside, out, count)
    return [replace(gpu, group=gpu.node) if moves else gpu for gpu in made], inside, waiting


def one_node(one: Member, count: int, per_node: int = 2) -> frozenset[str]:
    """Return all GPUs of the claim's node; none if it is on several, as no claim can be moved there."""
    nodes = {int(key[1:]) // per_node for key in one.gpus}
    return frozenset(f"g{at}" for at in range(count) if {at // per_node} == nodes)


def fits(one: Member, keys: tuple[str, ...], gpus: dict[str, SharedGpu], leaving: list[Member]) -> bool:
    def free(key: str) -> tuple[int, int]:
        here = [member for member in leaving if key in member.gpus]
        gpu = gpus[key]
        core, memory_mib = sum(item.core for item in here), sum(item.memory_mib for item in here)
        return gpu.core_free + core, gpu.memory_free_mib + memory_mib

    return all(free(key)[0] >= one.core and free(key)[1] >= one.memory_mib for key in keys)


NOW = 1000.0
AMPLE = {"n0": 1 << 40, "n1": 1 << 40, "acme": 1 << 40}
settled = settings(max_examples=examples(300), deadline=None)


@settled
@given(pools(), st.sampled_from([AMPLE, {"n0": 60 * GIB, "n1": 200 * GIB, "acme": 100 * GIB}]))
def test_every_swap_keeps_to_the_rules(
    pool: tuple[list[SharedGpu], list[Member], list[Member]], budgets: dict[str, int]
) -> None:
    gpus, inside, waiting = pool
    by_key, members = {gpu.key: gpu for gpu in gpus}, {one.key: one for one in [*inside, *waiting]}
    used: Counter[str] = Counter()
    drawn: Counter[str] = Counter()
    for swap in plan(RULES, Scene(gpus, inside, waiting, budgets, NOW)):
        one, out = members[swap.into], [members[key] for key in swap.out]
        assert one in waiting
        assert all(victim in inside for victim in out)
        assert len(swap.gpus) == one.gpu_count
        assert not one.gpus or set(swap.gpus) <= reach(one)
        assert len({by_key[key].node for key in swap.gpus}) == 1 or one.gpus
        # It comes in, and nobody goes out in vain.
        assert fits(one, swap.gpus, by_key, out)
        for victim in out:
            assert not fits(one, swap.gpus, by_key, [other for other in out if other is not victim])
            assert not victim.stays
            assert victim.priority <= one.priority
            assert swap.at >= victim.since + slice_length(out, one, RULES)
        # Each takes a tenth of a slice at most.
        cost = sum(map(seconds_out, out)) + seconds_in(one)
        assert cost <= slice_length(out, one, RULES) / 10
        if not one.gpus:
            left = [other for other in waiting if other.gpus and reach(other) & set(swap.gpus)]
            assert out or left, "a round would place it"
            for group in {by_key[key].group or key for key in swap.gpus}:
                there = [gpu for gpu in gpus if group in (gpu.group, gpu.key)]
                new = sum(1 for gpu in there if gpu.key in swap.gpus)
                assert sum(gpu.core_admitted for gpu in there) + new * one.core <= 3 * 100 * len(there)
                assert sum(gpu.memory_admitted_mib for gpu in there) + new * one.memory_mib <= 3 * CARD * len(there)
        used.update(swap.gpus)
        if swap.at <= NOW:
            for victim in out:
                drawn.update(dict.fromkeys(victim.draws, victim.memory_mib * victim.gpu_count))
    assert all(number == 1 for number in used.values())
    assert all(drawn[draw] <= budgets[draw] for draw in drawn)


@settled
@given(pools())
def test_a_swap_is_found_if_and_only_if_all_who_may_go_would_make_the_room(
    pool: tuple[list[SharedGpu], list[Member], list[Member]],
) -> None:
    gpus, inside, waiting = pool
    by_key = {gpu.key: gpu for gpu in gpus}
    for one in waiting:
        if not one.gpus:
            continue
        may = [victim for victim in inside if not victim.stays and victim.priority <= one.priority]
        found = plan(RULES, Scene(gpus, inside, [one], AMPLE, NOW))
        choices = [one.gpus, *combinations(sorted(reach(one)), one.gpu_count)]
        assert bool(found) == any(fits(one, choice, by_key, may) for choice in choices)


@settled
@given(pools())
def test_gpus_that_are_busy_are_left_alone(pool: tuple[list[SharedGpu], list[Member], list[Member]]) -> None:
    gpus, inside, waiting = pool
    first = replace(gpus[0], busy=True)
    touching = {one.key for one in inside if first.key in one.gpus}
    for swap in plan(RULES, Scene([first, *gpus[1:]], inside, waiting, AMPLE, NOW)):
        assert first.key not in swap.gpus
        assert not touching & set(swap.out)


class Clockwork:
    """One GPU whose claims share it in made-up time: each swap takes as long as it is estimated.

    `swapping` is in GPU-seconds: those of the claims that go out. The others work on meanwhile.
    """

    def __init__(self, members: list[Member], rules: Rules) -> None:
        self.rules, self.now, self.swapping, self.moves = rules, 0.0, 0.0, 0
        self.members: dict[str, Member] = {}
        self.inside: set[str] = set()
        self.served: dict[str, float] = {}
        for one in members:
            self.join(one)

    def join(self, one: Member) -> None:
        """Let it wait."""
        self.members[one.key] = replace(one, since=self.now)

    def run(self, until: float) -> None:
        while self.now < until and self.step(until):
            pass

    def step(self, until: float) -> bool:
        inside = [self._seen(key) for key in sorted(self.inside)]
        waiting = [self._seen(key) for key in sorted(set(self.members) - self.inside)]
        out = [one for one in waiting if one.gpus]
        gpus = make_gpus(inside, out, 1)
        for one in in_order(waiting):
            if fits(one, ("g0",), {gpu.key: gpu for gpu in gpus}, []):
                self.enter(one.key)
                return True
        swaps = plan(self.rules, Scene(gpus, inside, waiting, AMPLE, self.now))
        if not swaps:
            self.advance(until)
            return False
        swap = swaps[0]
        self.advance(min(swap.at, until))
        if swap.at > until:
            return False
        for key in (*swap.out, swap.into):
            self.served.setdefault(key, swap.served)
        into = self._seen(swap.into)
        cost = sum(seconds_out(self._seen(key)) for key in swap.out) + seconds_in(into)
        for key in swap.out:
            self.inside.discard(key)
            self.members[key] = replace(self.members[key], since=self.now)
        self.advance(self.now + cost)
        self.swapping += cost * sum(share(one, {gpu.key: gpu for gpu in gpus}) for one in inside if one.key in swap.out)
        self.moves += 1
        self.enter(swap.into)
        return True

    def enter(self, key: str) -> None:
        self.served.setdefault(key, 0.0)
        self.members[key] = replace(self.members[key], since=self.now, gpus=("g0",))
        self.inside.add(key)

    def advance(self, to: float) -> None:
        gpus = {"g0": make_gpus([], [], 1)[0]}
        for key in self.inside:
            self.served[key] = self.served.get(key, 0.0) + (to - self.now) * share(self.members[key], gpus)
        self.now = to

    def _seen(self, key: str) -> Member:
        return replace(self.members[key], served=self.served.get(key))


def make_claims(*sizes: int, core: int = 100) -> list[Member]:
    return [
        Member(f"c{number}", core, gib * GIB, allowed=frozenset({"g0"}), since=float(number), draws=("n0",))
        for number, gib in enumerate(sizes)
    ]


def test_three_claims_of_60_gib_have_equal_parts_of_a_day_and_swaps_take_a_tenth_at_most() -> None:
    clock = Clockwork(make_claims(60, 60, 60), RULES)
    clock.run(86_400)
    length = slice_length(make_claims(60), replace(make_claims(60)[0], gpus=("g0",)), RULES)
    assert length == 10 * (2 * 0.5 + 60 * GIB / 1536 + 60 * GIB / 4096)
    assert max(clock.served.values()) - min(clock.served.values()) <= length
    assert clock.swapping <= 0.1 * 86_400
    assert sum(clock.served.values()) >= 0.9 * 86_400
    assert clock.moves > 86_400 / length / 1.2


def test_a_long_slice_is_kept() -> None:
    clock = Clockwork(make_claims(60, 60), Rules(2, 3600))
    clock.run(10 * 3600)
    assert clock.moves == 9
    assert clock.swapping < 0.02 * clock.now


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.sampled_from([45, 50, 60, 70, 80]), min_size=2, max_size=4))
def test_claims_that_exclude_each_other_differ_by_a_slice_at_most(sizes: list[int]) -> None:
    clock = Clockwork(make_claims(*sizes), Rules(8, 60))
    clock.run(40_000)
    longest = slice_length(make_claims(80), replace(make_claims(80)[0], gpus=("g0",)), RULES)
    # These are sums of floats.
    assert max(clock.served.values()) - min(clock.served.values()) <= longest + 1e-6
    assert clock.swapping <= 0.1 * clock.now


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.sampled_from([10, 20, 40, 60, 80]), min_size=2, max_size=6))
def test_nobody_starves_whatever_the_sizes(sizes: list[int]) -> None:
    clock = Clockwork(make_claims(*sizes, core=10), Rules(8, 60))
    clock.run(20_000)
    before = dict(clock.served)
    clock.run(60_000)
    assert all(clock.served[key] > before[key] for key in before)
    assert clock.swapping <= 0.1 * sum(clock.served.values())


def test_a_newcomer_begins_at_the_members_least_and_does_not_keep_the_others_out() -> None:
    clock = Clockwork(make_claims(60, 60), RULES)
    clock.run(50_000)
    least = min(clock.served.values())
    clock.join(replace(make_claims(60)[0], key="late"))
    before = dict(clock.served)
    clock.run(clock.now + 5_000)
    parts = [clock.served["c0"] - before["c0"], clock.served["c1"] - before["c1"], clock.served["late"] - least]
    assert max(parts) - min(parts) <= 1000, "all three had about a third of the time since"


def test_without_that_it_would_keep_them_out() -> None:
    """Control: begun at 0, it has the GPU to itself until it has had what they had."""
    clock = Clockwork(make_claims(60, 60), RULES)
    clock.run(50_000)
    clock.join(replace(make_claims(60)[0], key="late"))
    clock.served["late"] = 0.0
    before = dict(clock.served)
    clock.run(clock.now + 5_000)
    others = clock.served["c0"] + clock.served["c1"] - before["c0"] - before["c1"]
    assert clock.served["late"] > 4 * others


def test_higher_priority_comes_in_after_the_slice_and_never_gives_way() -> None:
    low, high = make_claims(60, 60)
    clock = Clockwork([low], RULES)
    clock.run(100)
    clock.join(replace(high, priority=5))
    clock.run(50_000)
    assert clock.moves == 1
    assert clock.inside == {"c1"}


def test_a_claim_gives_way_only_to_its_equals_that_had_less() -> None:
    inside = replace(make_claims(60)[0], gpus=("g0",), served=100.0, since=0.0)
    ahead = replace(make_claims(60)[0], key="x", gpus=("g0",), served=400.0)
    gpus = make_gpus([inside], [ahead], 1)
    now = 10_000.0
    assert plan(RULES, Scene(gpus, [inside], [ahead], AMPLE, now)) == [Swap(("c0",), "x", ("g0",), now + 300, 400.0)]
    behind = replace(ahead, served=50.0)
    assert plan(RULES, Scene(gpus, [inside], [behind], AMPLE, now))[0].at <= now


def test_measured_times_decide_over_estimates() -> None:
    victim = replace(make_claims(60)[0], gpus=("g0",), served=10.0, out_seconds=2.0)
    one = replace(make_claims(60)[0], key="x", gpus=("g0",), served=0.0, in_seconds=1.0)
    assert slice_length([victim], one, Rules(2, 5)) == 30.0
    assert slice_length([victim], one, Rules(2, 60)) == 60


def test_a_newcomer_waits_for_nobody_beyond_the_ratio() -> None:
    inside = replace(make_claims(60)[0], gpus=("g0",), served=10.0)
    out = replace(make_claims(60)[0], key="out", gpus=("g0",), served=0.0)
    new = replace(make_claims(60)[0], key="new")
    gpus = make_gpus([inside], [out], 1)
    assert [swap.into for swap in plan(Rules(3, 60), Scene(gpus, [inside], [new], AMPLE, 10_000))] == ["new"]
    assert plan(Rules(2, 60), Scene(gpus, [inside], [new], AMPLE, 10_000)) == []


def test_several_small_ones_go_out_for_a_large_one_and_come_back_together() -> None:
    small = [replace(one, gpus=("g0",), served=5000.0) for one in make_claims(20, 20, 20, 20, core=20)]
    large = replace(make_claims(70)[0], key="large", gpus=("g0",), served=0.0)
    swap = plan(RULES, Scene(make_gpus(small, [large], 1), small, [large], AMPLE, 10_000.0))[0]
    assert set(swap.out) == {"c0", "c1", "c2", "c3"}
    inside = replace(large, served=9000.0)
    back = plan(RULES, Scene(make_gpus([inside], small, 1), [inside], small, AMPLE, 10_000.0))
    assert [one.out for one in back] == [("large",)]


def test_a_budget_that_does_not_exist_limits_nobody() -> None:
    """Two go out for one of both GPUs; their tenant has no quota of host memory."""
    inside = [
        replace(one, gpus=(f"g{at}",), served=5000.0, draws=("n0", "free"))
        for at, one in enumerate(make_claims(60, 60))
    ]
    large = Member("large", 100, 60 * GIB, 2, gpus=("g0", "g1"), served=0.0)
    (swap,) = plan(RULES, Scene(make_gpus(inside, [large], 2), inside, [large], {"n0": 120 * GIB}, 10_000.0))
    assert set(swap.out) == {"c0", "c1"}
    assert plan(RULES, Scene(make_gpus(inside, [large], 2), inside, [large], {"n0": 119 * GIB}, 10_000.0)) == []


def test_who_is_out_comes_in_where_there_is_room_first_and_on_its_own_gpu_if_both_have() -> None:
    one = replace(make_claims(60)[0], key="out", gpus=("g0",), served=900.0, allowed=frozenset({"g0", "g1"}))
    there = replace(make_claims(60)[0], gpus=("g0",), served=900.0, since=990.0)
    swaps = plan(RULES, Scene(make_gpus([there], [one], 2), [there], [one], AMPLE, NOW))
    assert [(swap.out, swap.gpus, swap.at) for swap in swaps] == [((), ("g1",), NOW)]
    swaps = plan(RULES, Scene(make_gpus([], [one], 2), [], [one], AMPLE, NOW))
    assert [(swap.out, swap.gpus) for swap in swaps] == [((), ("g0",))]
    # Where it cannot be moved, it waits for the slice to end.
    swaps = plan(RULES, Scene(make_gpus([there], [one], 2), [there], [replace(one, allowed=frozenset())], AMPLE, NOW))
    assert [(swap.out, swap.gpus) for swap in swaps] == [(("c0",), ("g0",))]


def test_the_ratio_is_that_of_all_gpus_between_which_claims_move() -> None:
    """Three were on g0 at last, so g0 alone would admit nobody; both together have room for a fourth of six."""
    out = [replace(one, gpus=("g0",), served=10.0) for one in make_claims(60, 60, 60)]
    new = Member("new", 100, 60 * GIB, allowed=frozenset({"g0"}), priority=1)
    gpus = make_gpus([], out, 2)
    assert plan(RULES, Scene(gpus, [], [new, *out], AMPLE, NOW))[0].into == "c0"
    moving = [replace(gpu, group="n0") for gpu in gpus]
    assert plan(RULES, Scene(moving, [], [new, *out], AMPLE, NOW))[0].into == "new"
