"""The rebalancer over the database: amounts lent, borrowers, returns, and proposals that wait for approval."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from apps.nodes.services import capacity
from apps.quotas.principals import SYSTEM
from apps.rebalancing.values import is_awake
from apps.reservations.lifecycle import create_reservation
from apps.scheduling.models import Claim, Proposal
from apps.scheduling.services.charging import borrowing
from apps.scheduling.services.claims.desired import desired_state
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.claims.sharing import change_pool
from apps.scheduling.services.cycles.rounds import run_round
from apps.scheduling.services.rebalancing import guarantees, proposals, waking
from apps.scheduling.services.reclaiming.forgetting import forget_node
from tests.cast import GIB, Cast, Machine, ask, assert_books_agree, lose, placed, used
from tests.scheduling.clock import Clock
from tests.scheduling.idling import borrower, idle_lender, machine, measured, run, usage

__all__ = ["machine"]


def test_an_idle_claim_lends_and_keeps_its_guarantee_its_charge_and_its_page(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    claim, _ = placed(cast, machine, core_request=80)
    page, charged = desired_state(machine.node), used(cast.acme)
    measured(claim, clock, core_percent=1.5)
    (found,) = run(cast)
    assert (found.kind, found.state, found.before, found.after) == (
        "lend",
        "applied",
        {"lent_core": 0},
        {"lent_core": 75},
    )
    assert "at most 1.5 % of a GPU" in found.explanation
    claim.refresh_from_db()
    assert (claim.core_request, claim.lent_core) == (80, 75)
    assert (machine.gpu().core_used, machine.gpu().core_lent) == (80, 75)
    assert (desired_state(machine.node), used(cast.acme)) == (page, charged)
    assert_books_agree()


def test_what_was_measured_can_be_read_in_steps(cast: Cast, machine: Machine, clock: Clock) -> None:
    claim, _ = placed(cast, machine)
    begin = clock.now
    measured(claim, clock, core_percent=30)
    window = f"from={begin:%Y-%m-%dT%H:%M:%SZ}&to={clock.now:%Y-%m-%dT%H:%M:%SZ}"
    (series,) = cast.max.get(f"utilization/?claim={claim.uid}&{window}&step=60").body["series"]
    assert series["core_percent"] == [30.0] * 5
    assert cast.max.get(f"utilization/?claim={claim.uid}&step={'9' * 5000}").status == 400


def test_what_is_lent_carries_a_best_effort_claim_which_is_guaranteed_nothing(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    idle_lender(cast, machine, clock)
    claim = borrower(cast)
    assert (claim.state, claim.borrowed_core, claim.reasons) == ("assigned", 60, [])
    pages = {item.core_request for item in desired_state(machine.node).assignments}
    assert pages == {80, 0}
    machine.obey()
    claim.refresh_from_db()
    gpu = machine.gpu()
    assert (claim.state, gpu.core_used, gpu.core_lent, gpu.core_borrowed) == ("active", 80, 75, 60)
    assert used(cast.globex)["core_percent"] == 60
    assert_books_agree()


def test_nobody_who_is_guaranteed_something_is_placed_on_what_is_lent(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    idle_lender(cast, machine, clock)
    claim = ask(cast, core_request=60)
    run_round(cast.pool)
    claim.refresh_from_db()
    assert claim.state == "queued"


def test_no_more_is_borrowed_than_is_free_and_lent(cast: Cast, machine: Machine, clock: Clock) -> None:
    idle_lender(cast, machine, clock)
    assert borrower(cast).state == "assigned"
    assert borrower(cast).state == "queued"


def test_many_who_wait_for_what_is_lent_cost_no_more_queries_than_few(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    idle_lender(cast, machine, clock)
    borrower(cast)

    def queries() -> int:
        with CaptureQueriesContext(connection) as asked:
            waiting = Claim.objects.filter(state="queued")
            assert guarantees.place_on_lent(cast.pool, list(waiting), fence=lambda: None) is None
        return len(asked)

    ask(cast, tenant=cast.globex, core_request=60, best_effort=True)
    few = queries()
    for _ in range(5):
        ask(cast, tenant=cast.globex, core_request=60, best_effort=True)
    ask(cast, tenant=cast.globex, core_request=70, best_effort=True)
    assert queries() == few


def test_a_borrower_with_room_of_its_own_borrows_nothing(cast: Cast, machine: Machine, clock: Clock) -> None:
    idle_lender(cast, machine, clock)
    claim, _ = placed(cast, machine, core_request=20, best_effort=True)
    assert (claim.borrowed_core, machine.gpu().core_used) == (0, 100)


def test_a_claim_that_is_seen_to_work_has_its_own_back_at_once(cast: Cast, machine: Machine, clock: Clock) -> None:
    lender = idle_lender(cast, machine, clock)
    taker = borrower(cast)
    usage(machine, lender, 3.0)
    assert machine.gpu().core_lent == 75, "that is noise"
    usage(machine, lender, 40.0)
    lender.refresh_from_db()
    gpu = machine.gpu()
    assert (lender.lent_core, gpu.core_lent, gpu.core_borrowed) == (0, 0, 60)
    found = Proposal.objects.first()
    assert found is not None
    assert (found.kind, found.policy, found.state) == ("give-back", "waking", "applied")
    assert "used 40 % of a GPU within a second" in found.explanation
    # Nothing more is placed on it, and present claims may stay: they have no guarantee.
    assert borrower(cast).state == "queued"
    taker.refresh_from_db()
    assert taker.state == "assigned"
    release_claim(principal=SYSTEM, claim=taker)
    machine.obey()
    assert machine.gpu().core_borrowed == 0
    assert_books_agree()


def test_of_two_measurements_at_once_one_gives_back(
    cast: Cast, machine: Machine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lender = idle_lender(cast, machine, clock)

    def with_another_before_it(*measured: Any) -> bool:
        monkeypatch.setattr(waking, "is_awake", is_awake)
        usage(machine, lender, 50.0)
        return is_awake(*measured)

    monkeypatch.setattr(waking, "is_awake", with_another_before_it)
    usage(machine, lender, 40.0)
    (found,) = Proposal.objects.filter(kind="give-back")
    assert found.numbers["core_percent"] == 50
    assert_books_agree()


def test_what_was_measured_before_it_lent_wakes_nobody(cast: Cast, machine: Machine, clock: Clock) -> None:
    lender = idle_lender(cast, machine, clock)
    clock.now -= timedelta(seconds=60)
    usage(machine, lender, 40.0)
    assert machine.gpu().core_lent == 75
    clock.now += timedelta(seconds=61)
    usage(machine, lender, 40.0)
    assert machine.gpu().core_lent == 0


def test_after_waking_it_lends_no_sooner_than_the_cool_down_and_a_new_window(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    lender = idle_lender(cast, machine, clock)
    usage(machine, lender, 40.0)
    measured(lender, clock, seconds=239)
    assert run(cast) == []
    measured(lender, clock, seconds=61)
    assert [found.kind for found in run(cast)] == ["lend"]


def release(cast: Cast, machine: Machine, claim: Claim) -> None:
    release_claim(principal=SYSTEM, claim=claim)
    machine.obey()


def forget(cast: Cast, machine: Machine, claim: Claim) -> None:
    lose(machine)
    forget_node(principal=SYSTEM, node=machine.node)


@pytest.mark.parametrize("end", [release, forget])
@pytest.mark.parametrize("who", ["lender", "borrower"])
def test_whatever_ends_a_claim_ends_its_loan(cast: Cast, machine: Machine, clock: Clock, end: Any, who: str) -> None:
    claims = {"lender": idle_lender(cast, machine, clock), "borrower": borrower(cast)}
    machine.obey()
    end(cast, machine, claims[who])
    gpu = machine.gpu()
    left = {"lender": (0, 60), "borrower": (75, 0)}[who] if end is release else (0, 0)
    assert (gpu.core_lent, gpu.core_borrowed) == left
    assert_books_agree()


@pytest.mark.parametrize("values", [{"core_request": 70}, {"rebalance": False}])
def test_an_owner_who_changes_the_guarantee_or_opts_out_has_it_back(
    cast: Cast, machine: Machine, clock: Clock, values: dict[str, Any]
) -> None:
    lender = idle_lender(cast, machine, clock)
    answer = cast.max.patch(f"claims/{lender.uid}/", values)
    assert (answer.status, answer.body["lent_core"]) == (200, 0)
    machine.obey()
    assert machine.gpu().core_lent == 0
    assert_books_agree()


def test_a_claim_that_opted_out_is_left_alone(cast: Cast, machine: Machine, clock: Clock) -> None:
    claim, _ = placed(cast, machine, core_request=80, rebalance=False)
    measured(claim, clock)
    assert run(cast) == []


def test_a_borrower_may_grow_by_what_is_lent_only_and_shrink(cast: Cast, machine: Machine, clock: Clock) -> None:
    idle_lender(cast, machine, clock)
    claim = borrower(cast)
    machine.obey()
    path = f"claims/{claim.uid}/"
    assert cast.gus.patch(path, {"core_request": 96, "core_limit": 96}).code == "no-room"
    for core in (95, 10):
        answer = cast.gus.patch(path, {"core_request": core, "core_limit": core})
        assert (answer.status, answer.body["borrowed_core"]) == (200, core)
        machine.obey()
        assert (machine.gpu().core_used, machine.gpu().core_borrowed) == (80, core)
        assert used(cast.globex)["core_percent"] == core
        assert_books_agree()


def test_a_borrower_has_its_own_where_there_is_room_again(cast: Cast, machine: Machine, clock: Clock) -> None:
    lender = idle_lender(cast, machine, clock)
    claim = borrower(cast)
    machine.obey()
    assert guarantees.own_what_is_free() == 0
    release_claim(principal=SYSTEM, claim=lender)
    machine.obey()
    assert guarantees.own_what_is_free() == 1
    assert [item.core_request for item in desired_state(machine.node).assignments] == [60]
    machine.obey()
    claim.refresh_from_db()
    gpu = machine.gpu()
    assert (claim.borrowed_core, gpu.core_used, gpu.core_borrowed) == (0, 60, 0)
    assert used(cast.globex)["core_percent"] == 60
    assert_books_agree()


@pytest.mark.parametrize("policy", ["fixed", "fair", "native"])
def test_where_idle_core_is_of_no_use_to_others_nothing_is_lent(
    cast: Cast, machine: Machine, clock: Clock, policy: str
) -> None:
    change_pool(principal=SYSTEM, pool=cast.pool, sharing_policy=policy)
    claim, _ = placed(cast, machine, core_request=80)
    measured(claim, clock)
    assert run(cast) == []
    with pytest.raises(guarantees.NothingLent):
        guarantees.lend(principal=SYSTEM, claim=claim, core=10, why="a test")
    assert not borrowing.lends(claim.pool)


@pytest.mark.parametrize("values", [{"rebalance_mode": "off"}, {"sharing_policy": "fixed"}])
def test_a_pool_that_lends_no_longer_gives_everything_back(
    cast: Cast, machine: Machine, clock: Clock, values: dict[str, Any]
) -> None:
    idle_lender(cast, machine, clock)
    assert proposals.end_lending() == 0
    change_pool(principal=SYSTEM, pool=cast.pool, **values)
    assert proposals.end_lending() == 1
    assert machine.gpu().core_lent == 0
    assert_books_agree()


def test_a_throttled_claim_gets_a_higher_limit_and_later_its_own_again(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    claim, assignment = placed(cast, machine, core_request=40)
    measured(claim, clock, core_percent=39.5, throttled_percent=60)
    (found,) = run(cast)
    assert (found.kind, found.state, found.after) == ("limit", "applied", {"core_limit": 60})
    machine.obey()
    claim.refresh_from_db()
    assignment.refresh_from_db()
    assert (claim.core_limit, claim.asked_core_limit, assignment.core_limit) == (60, 40, 60)
    assert (claim.core_request, used(cast.acme)["core_percent"]) == (40, 40), "a limit costs nothing"
    measured(claim, clock, core_percent=20)
    (found,) = run(cast)
    assert (found.kind, found.after) == ("limit", {"core_limit": 40})
    claim.refresh_from_db()
    assert (claim.core_limit, claim.asked_core_limit) == (40, None)


def test_a_borrower_gets_nothing_of_its_own_that_was_booked_at_the_last_moment(
    cast: Cast, machine: Machine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lender = idle_lender(cast, machine, clock)
    claim = borrower(cast)
    machine.obey()
    release_claim(principal=SYSTEM, claim=lender)
    machine.obey()
    promise = capacity.promise_borrowed

    def booked_before(**values: Any) -> bool:
        soon = timezone.now() + timedelta(hours=1)
        asked: dict[str, Any] = {"name": "exam", "core_request": 60, "memory_mib": GIB}
        asked |= {"start_at": soon, "end_at": soon + timedelta(hours=1)}
        create_reservation(principal=SYSTEM, tenant=cast.acme, pool=cast.pool, **asked)
        return promise(**values)

    monkeypatch.setattr(capacity, "promise_borrowed", booked_before)
    assert guarantees.own_what_is_free() == 0
    claim.refresh_from_db()
    assert (claim.borrowed_core, machine.gpu().core_used) == (60, 0)
    assert_books_agree()
