"""Reclaim: victims in order, spared if not needed, only of borrowers, and without cycles."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.scheduling.core import reclaim as rules
from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.reclaim import Account, Books, Claimant, Holder, ReclaimBounds, Scene, Victims, reclaim
from apps.scheduling.core.values import GpuState, Request
from tests.matrix import examples

CORE = "core"
MIB = 1000


def gpu(number: int, *, free: int = 100, node: str = "n1", model: str = "A10") -> GpuState:
    return GpuState(f"g{number}", node, number, model, MIB, free, MIB)


def core(amount: int) -> Request:
    return Request(1, amount, 1)


def living(claim: str, tenant: str, amount: int, on: str | None = "g0", **facts: Any) -> Holder:
    parts = () if on is None else ((on, core(amount)),)
    return Holder(claim, tenant, {CORE: amount}, parts, placed=on is not None, **facts)


def wanting(amount: int, tenant: str = "lender", **facts: int) -> Claimant:
    return Claimant("new", tenant, core(amount), {CORE: amount}, **facts)


def scene(*items: Holder, gpus: int = 1, nominal: dict[str, int] | None = None) -> Scene:
    """Create claims on GPUs of one node; the lender and a borrower have half each by default."""
    nominal = nominal or {"lender": 50 * gpus, "borrower": 50 * gpus}
    fleet = Fleet([gpu(number) for number in range(gpus)], backend="python")
    books = Books({CORE: sum(nominal.values())}, {tenant: {CORE: Account(hard)} for tenant, hard in nominal.items()})
    for item in items:
        for uuid, request in item.parts:
            fleet.take((uuid,), request)
        books.charge(item.tenant, item.amounts)
    return Scene(fleet, books, items)


def names(found: Victims | None) -> list[str]:
    assert found is not None
    return [item.claim for item in found.claims]


def test_nobody_goes_for_room_that_is_used_without_a_claim_too() -> None:
    there = scene(living("a", "borrower", 80))
    # 60 of the 100 there are used without a claim.
    there.fleet.set_gpu(replace(gpu(0), core_free=0, core_over=40))
    assert reclaim(there, wanting(50)) is None
    assert there.fleet.gpus() == [replace(gpu(0), core_free=0, core_over=40)]
    assert names(reclaim(there, wanting(40))) == ["a"]


def test_who_lent_gets_it_back_from_who_borrowed() -> None:
    found = reclaim(scene(living("a", "borrower", 60), living("b", "borrower", 40)), wanting(30))
    assert names(found) == ["a"]
    assert found is not None
    assert (found.short, found.no_gpu, found.gpus) == ((CORE,), True, ("g0",))
    assert found.explanation == (
        "No room in core, GPUs: 1 claim of 1 tenant go, then it fits on 1 GPU; 0 were tried and spared."
    )


def test_what_fits_takes_from_nobody() -> None:
    assert names(reclaim(scene(living("a", "borrower", 60)), wanting(40))) == []


def test_nobody_within_nominal_is_a_victim_though_the_gpu_is_full() -> None:
    full = scene(living("a", "borrower", 50), living("b", "lender", 50), nominal={"lender": 100, "borrower": 50})
    assert reclaim(full, wanting(30)) is None


def test_one_who_is_down_to_nominal_gives_no_more() -> None:
    items = [living(name, "borrower", 20) for name in "abcde"]
    assert names(reclaim(scene(*items), wanting(40))) == ["a", "b"]
    assert names(reclaim(scene(*items), wanting(50))) == ["a", "b", "c"]
    # Sixty would be the borrower's guarantee, and more than the lender has.
    assert reclaim(scene(*items), wanting(61)) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"noticed": True, "priority": 9}, {"priority": 0}),
        ({"best_effort": True, "priority": 9}, {"priority": 0}),
        ({"priority": 1, "since": 1.0}, {"priority": 2, "since": 9.0}),
        ({"since": 9.0}, {"since": 1.0}),
    ],
)
def test_the_order_of_victims(one: dict[str, Any], other: dict[str, Any]) -> None:
    for first, second in (("a", "b"), ("b", "a")):
        there = scene(living(first, "borrower", 50, **one), living(second, "borrower", 50, **other))
        assert names(reclaim(there, wanting(30))) == [first]


def test_what_only_waits_goes_before_what_runs() -> None:
    there = scene(living("runs", "borrower", 50), living("waits", "borrower", 50, on=None))
    assert names(reclaim(there, wanting(30))) == ["waits"]


def test_among_equals_goes_what_leaves_its_gpu_most_whole() -> None:
    there = scene(
        living("a", "borrower", 40, "g0"),
        living("b", "borrower", 60, "g0", since=-1.0),
        living("c", "borrower", 40, "g1"),
        gpus=2,
        nominal={"lender": 190, "borrower": 10},
    )
    assert names(reclaim(there, wanting(90))) == ["c"]


def test_a_victim_that_turns_out_not_to_be_needed_is_spared() -> None:
    small, large = living("small", "borrower", 10, since=9.0), living("large", "borrower", 90, since=1.0)
    found = reclaim(scene(small, large), wanting(50))
    assert names(found) == ["large"]
    assert found is not None
    assert found.spared == 1


def test_where_others_would_have_to_go_for_nothing_each_node_is_tried_by_itself() -> None:
    """The borrower may lose only so much: the first victims are spread over nodes, and together free no GPU."""
    gpus = [gpu(number, node=f"n{number}") for number in range(3)]
    items = [living(f"s{number}", "borrower", 50, f"g{number}", since=9.0) for number in range(3)]
    items += [living(f"t{number}", "borrower", 50, f"g{number}", since=1.0) for number in range(3)]
    books = Books({CORE: 300}, {"lender": {CORE: Account(100)}, "borrower": {CORE: Account(200)}})
    fleet = Fleet(gpus, backend="python")
    there = Scene(fleet, books, items)
    for item in items:
        there.back(item)
    assert names(reclaim(there, wanting(100))) == ["s0", "t0"]


def test_where_nothing_would_help_the_nodes_are_not_tried_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[Any]()
    place = Scene.place

    def counted(one: Scene, item: Claimant) -> Any:
        tried.append(item)
        return place(one, item)

    monkeypatch.setattr(Scene, "place", counted)
    lost = [replace(gpu(number, free=0, node=f"n{number}"), schedulable=False) for number in range(20)]
    many = [living(f"c{number}", "borrower", 100, f"g{number}") for number in range(20)]
    books = Books({CORE: 2000}, {"lender": {CORE: Account(2000)}, "borrower": {CORE: Account(0, used=2000)}})
    found = reclaim(Scene(Fleet(lost, backend="python"), books, many), wanting(100))
    assert found is None
    assert len(tried) <= len(many) + 2


def test_a_group_goes_as_a_whole() -> None:
    parts = (("g0", core(50)), ("g1", core(50)))
    group = Holder("group", "borrower", {CORE: 100}, parts)
    there = Scene(
        Fleet([gpu(0), gpu(1)], backend="python"),
        Books({CORE: 200}, {"lender": {CORE: Account(150)}, "borrower": {CORE: Account(50)}}),
        [group],
    )
    there.back(group)
    found = reclaim(there, wanting(100))
    assert names(found) == ["group"]
    assert found is not None
    there.settle(wanting(100), found)
    assert sorted(item.core_free for item in there.fleet.gpus()) == [0, 100]


def test_too_many_victims_are_none() -> None:
    items = [living(f"c{number}", "borrower", 10) for number in range(10)]
    there = scene(*items, nominal={"lender": 100, "borrower": 0})
    assert len(names(reclaim(there, wanting(50), ReclaimBounds(most_victims=5)))) == 5
    assert reclaim(there, wanting(50), ReclaimBounds(most_victims=4)) is None


def test_the_gpu_must_suit_too() -> None:
    there = scene(living("a", "borrower", 100))
    other = replace(wanting(30), request=Request(1, 30, 1, "H100"))
    assert reclaim(there, other) is None
    assert reclaim(there, wanting(30)) is not None


def test_ones_own_claims_of_lower_priority_go_only_where_that_is_wanted() -> None:
    own = scene(living("a", "lender", 50, priority=1), living("b", "lender", 50, priority=5))
    urgent = wanting(40, priority=3)
    assert reclaim(own, urgent) is None
    assert names(reclaim(own, urgent, ReclaimBounds(own_by_priority=True))) == ["a"]
    assert reclaim(own, replace(urgent, priority=1), ReclaimBounds(own_by_priority=True)) is None


# At random

TENANTS = ("a", "b", "c")


class Cohort:
    """Tenants that request again and again: requests that do not fit reclaim, and victims queue again."""

    def __init__(self, seed: int, *, gpus: int = 3) -> None:
        dice = random.Random(seed)  # noqa: S311 - what happens must be repeatable
        nominal = {tenant: dice.choice((0, 50, 100, 150)) for tenant in TENANTS}
        lends = {tenant: dice.choice((0, hard // 2, hard)) for tenant, hard in nominal.items()}
        accounts = {
            tenant: {CORE: Account(hard, hard - lends[tenant], dice.choice((None, None, hard + 100)))}
            for tenant, hard in nominal.items()
        }
        weights = {tenant: dice.choice((1, 1, 3)) for tenant in TENANTS}
        books = Books({CORE: sum(lends.values())}, accounts, weights)
        self.scene = Scene(Fleet([gpu(number) for number in range(gpus)], backend="python"), books, [])
        self.waiting = [
            Claimant(f"{number:02}", tenant, core(size), {CORE: size}, dice.choice((0, 0, 5)))
            for number in range(14)
            for tenant, size in [(dice.choice(TENANTS), dice.choice((10, 20, 30, 50, 60, 100)))]
        ]
        self.asked = {item.claim: item for item in self.waiting}
        self.clock = 0.0
        dice.shuffle(self.waiting)

    def turn(self, look: Callable[[Claimant, Victims], None]) -> int:
        """Try each queued request once; return the number of victims."""
        gone = 0
        for item in list(self.waiting):
            found = reclaim(self.scene, item)
            if found is None:
                continue
            look(item, found)
            self.scene.settle(item, found)
            self.clock += 1
            parts = tuple((uuid, item.request) for uuid in found.gpus)
            self.scene.living[item.claim] = Holder(
                item.claim, item.tenant, item.amounts, parts, self.clock, item.priority
            )
            self.waiting.remove(item)
            self.waiting += [self.asked[victim.claim] for victim in found.claims]
            gone += len(found.claims)
        return gone

    def nothing_is_promised_twice(self) -> None:
        books = self.scene.books
        assert books.total_taken(CORE) <= books.lendable[CORE]
        assert all(item.core_free >= 0 for item in self.scene.fleet.gpus())


Rule = Callable[[Books, Claimant, Holder, ReclaimBounds], bool]
# It settles far earlier, or never.
MANY = 40
# A cohort that does not settle under any of the laxer rules.
TURNS = 20


def settles(cohort: Cohort, look: Callable[[Claimant, Victims], None] = lambda *_: None) -> bool:
    return any(cohort.turn(look) == 0 for _ in range(MANY))


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 10**6))
def test_whatever_happens_it_settles_and_nobody_within_nominal_loses_anything(seed: int) -> None:
    cohort = Cohort(seed)
    books = cohort.scene.books

    def look(item: Claimant, found: Victims) -> None:
        before = {tenant: accounts[CORE].used for tenant, accounts in books.accounts.items()}
        share = books.share(item.tenant, item.amounts)
        for victim in found.claims:
            assert before[victim.tenant] > books.accounts[victim.tenant][CORE].nominal
            had, before[victim.tenant] = before[victim.tenant], before[victim.tenant] - victim.amounts[CORE]
            changes = [{CORE: used - books.accounts[victim.tenant][CORE].used} for used in (had, before[victim.tenant])]
            was, becomes = (books.share(victim.tenant, change) for change in changes)
            assert share < was
            assert share <= becomes
        # Each victim is needed.
        for spared in found.claims:
            others = [other for other in found.claims if other is not spared]
            for other in others:
                cohort.scene.leave(other)
            assert cohort.scene.place(item) is None
            for other in others:
                cohort.scene.back(other)

    assert settles(cohort, look)
    cohort.nothing_is_promised_twice()


def anyone(books: Books, item: Claimant, victim: Holder, bounds: ReclaimBounds) -> bool:
    return victim.tenant != item.tenant


def any_borrower(books: Books, item: Claimant, victim: Holder, bounds: ReclaimBounds) -> bool:
    return victim.tenant != item.tenant and books.borrows(victim.tenant, [CORE])


def any_larger_borrower(books: Books, item: Claimant, victim: Holder, bounds: ReclaimBounds) -> bool:
    mine = books.share(item.tenant, item.amounts)
    return any_borrower(books, item, victim, bounds) and mine < books.share(victim.tenant)


@pytest.mark.parametrize("rule", [anyone, any_borrower, any_larger_borrower])
def test_without_the_rules_they_take_turns_for_ever(monkeypatch: pytest.MonkeyPatch, rule: Rule) -> None:
    """The control: under laxer rules a victim takes its capacity back, and so on. The third rule is Kueue's second."""
    assert settles(Cohort(TURNS))
    monkeypatch.setattr(rules, "may_take", rule)
    assert not settles(Cohort(TURNS))


def test_without_the_rules_somebody_within_nominal_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the victims' test above."""
    there = scene(living("a", "borrower", 50), living("b", "lender", 50), nominal={"lender": 100, "borrower": 50})
    assert reclaim(there, wanting(30)) is None
    monkeypatch.setattr(rules, "may_take", lambda *_: True)
    assert names(reclaim(there, wanting(30))) == ["a"]


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 10**6))
def test_asking_changes_nothing(seed: int) -> None:
    cohort = Cohort(seed)
    for _ in range(2):
        cohort.turn(lambda *_: None)
    before = list(cohort.scene.fleet.gpus()), {**cohort.scene.books.accounts}
    for item in cohort.waiting:
        reclaim(cohort.scene, item)
    assert (list(cohort.scene.fleet.gpus()), cohort.scene.books.accounts) == before


def test_a_level_that_is_short_takes_from_borrowers_below_it_and_bounds_nobody_else() -> None:
    amounts = {CORE: 30, "physics": 30}
    below = scene(replace(living("a", "borrower", 60), amounts={CORE: 60, "physics": 60}), living("b", "other", 60))
    below.books.accounts["other"] = {CORE: Account(0, used=60)}
    below.books.lendable = {CORE: 900}
    below.books.levels = {"physics": 0}
    below.fleet.set_gpu(gpu(1))
    wanting_ = Claimant("new", "lender", core(30), amounts)
    found = reclaim(below, wanting_)
    # Of two borrowers only one is below the level.
    assert names(found) == ["a"]
    assert found is not None
    assert (found.short, found.no_gpu) == (("physics",), False)
    below.settle(wanting_, found)
    assert below.books.levels == {"physics": 30}
