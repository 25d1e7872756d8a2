"""A reservation's life by the clock: it begins once, perhaps late; its claims run in it; it is released at its end."""

from datetime import timedelta
from typing import Any

import pytest

from apps.accounting.services.ledger_check import differences
from apps.quotas.models import AuditEvent
from apps.quotas.principals import SYSTEM
from apps.reservations.clock import drive
from apps.reservations.lifecycle import create_reservation, release_reservation
from apps.scheduling.models import Assignment, Claim, Reservation, Round
from apps.scheduling.services.charging.reservation_charges import ReservationFull, ReservationNotActive
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.claims.resize import NoRoom, resize_claim
from apps.scheduling.services.claims.sharing import change_pool
from apps.scheduling.services.claims.spec import ClaimChanges
from apps.scheduling.services.cycles.rounds import run_round
from apps.whatif import rounds as replays
from tests.cast import GIB, Cast, Machine, ask, assert_books_agree, give, give_plenty, lose, placed, used
from tests.measurements import steady
from tests.scheduling.clock import START, Clock

HOUR = timedelta(hours=1)
RULES: dict[str, Any] = {"grace_seconds": 900, "idle_percent": 5, "idle_seconds": 600}


@pytest.fixture
def stage(clock: Clock, cast: Cast) -> Cast:
    give(cast.acme, core_percent=200, memory_mib=None)
    give_plenty(cast.globex)
    return cast


@pytest.fixture
def machine(stage: Cast) -> Machine:
    return Machine("gpu1", stage.pool, gpus=1)


def book(stage: Cast, start: float = 1, end: float = 3, **facts: Any) -> Reservation:
    asked = {"name": "exam", "core_request": 60, "memory_mib": 8 * GIB, **RULES, **facts}
    asked = {"tenant": stage.acme, "pool": stage.pool, **asked}
    window: dict[str, Any] = {"start_at": START + start * HOUR, "end_at": START + end * HOUR}
    return create_reservation(principal=SYSTEM, **window, **asked)[0]


def now(row: Reservation) -> Reservation:
    row.refresh_from_db()
    return row


def state(claim: Claim) -> str:
    claim.refresh_from_db()
    return claim.state


def actions() -> list[str]:
    rows = AuditEvent.objects.filter(object_type="reservation").order_by("pk")
    return [action.removeprefix("reservation.") for action in rows.values_list("action", flat=True)]


def agree() -> None:
    assert_books_agree()
    assert not differences()


def test_it_begins_late_after_a_downtime_and_only_once(stage: Cast, machine: Machine, clock: Clock) -> None:
    row = book(stage)
    assert (drive(), now(row).state) == (0, "booked")
    clock.advance(hours=1.5)
    assert drive() == 1
    begun = now(row)
    assert (begun.state, begun.started_at) == ("active", START + 1.5 * HOUR)
    assert drive() == 0
    assert actions() == ["create", "begin"]
    assert used(stage.acme)["core_percent"] == 60
    agree()


def test_one_whose_whole_window_passed_unseen_never_begins(stage: Cast, machine: Machine, clock: Clock) -> None:
    row = book(stage)
    clock.advance(hours=4)
    assert drive() == 1
    assert (now(row).state, row.ending, row.started_at) == ("released", "ended", None)


def test_nobody_within_its_grace_and_it_gives_itself_back(stage: Cast, machine: Machine, clock: Clock) -> None:
    row = book(stage, grace_seconds=900)
    clock.advance(hours=1)
    drive()
    clock.advance(seconds=899)
    assert drive() == 0
    clock.advance(seconds=1)
    assert drive() == 1
    assert (now(row).state, row.ending, used(stage.acme)["core_percent"]) == ("released", "no-show", 0)
    event = AuditEvent.objects.get(action="reservation.release")
    assert (event.tenant, event.after) == (stage.acme, {"why": "Nobody claimed within its grace"})
    # Its capacity is available to others again.
    placed(stage, machine, tenant=stage.globex, core_request=100)
    agree()


def test_control_with_a_claim_or_without_a_grace_it_stays(stage: Cast, machine: Machine, clock: Clock) -> None:
    make_claim, kept = book(stage, core_request=30), book(stage, core_request=30, grace_seconds=None)
    clock.advance(hours=1)
    drive()
    placed(stage, machine, reservation=now(make_claim), core_request=30)
    clock.advance(hours=1)
    drive()
    assert (now(make_claim).state, now(kept).state) == ("active", "active")


def test_a_claim_bears_its_part_of_the_reservations_charge_and_gives_it_back(
    stage: Cast, machine: Machine, clock: Clock
) -> None:
    row = book(stage)
    clock.advance(hours=1)
    drive()
    claim, _ = placed(stage, machine, reservation=now(row), core_request=40)
    assert (claim.charged["core_percent"], now(row).charged["core_percent"]) == (40, 20)
    assert used(stage.acme)["core_percent"] == 60
    agree()
    with pytest.raises(ReservationFull):
        ask(stage, reservation=now(row), core_request=21)
    release_claim(principal=SYSTEM, claim=claim)
    machine.obey()
    assert (state(claim), now(row).charged["core_percent"], used(stage.acme)["core_percent"]) == ("released", 60, 60)
    agree()


def test_a_claim_needs_an_active_reservation_of_its_tenant(stage: Cast, machine: Machine, clock: Clock) -> None:
    row = book(stage)
    with pytest.raises(ReservationNotActive):
        ask(stage, reservation=row)
    clock.advance(hours=1)
    drive()
    with pytest.raises(ReservationNotActive):
        ask(stage, tenant=stage.globex, reservation=now(row))
    body = {"tenant": "acme", "core_request": 10, "memory_mib": 100, "reservation": str(row.uid)}
    made = stage.max.post("claims/", body)
    assert (made.status, made.body["reservation"]) == (201, str(row.uid))
    foreign = stage.gus.post("claims/", {**body, "tenant": "globex"})
    assert "There is no reservation" in foreign.body["errors"]["reservation"][0]


def test_others_do_not_get_what_is_reserved_and_its_own_claims_do(stage: Cast, machine: Machine, clock: Clock) -> None:
    row = book(stage)
    endless = ask(stage, tenant=stage.globex, core_request=50)
    short = ask(stage, tenant=stage.globex, core_request=50, time_limit_seconds=1800)
    small = ask(stage, tenant=stage.globex, core_request=40)
    run_round(stage.pool)
    assert [state(claim) for claim in (endless, short, small)] == ["queued", "assigned", "assigned"]
    assert [reason["code"] for reason in endless.reasons] == ["reserved"]
    release_claim(principal=SYSTEM, claim=short)
    machine.obey()
    clock.advance(hours=1)
    drive()
    mine = ask(stage, reservation=now(row), core_request=60)
    run_round(stage.pool)
    assert [state(claim) for claim in (endless, mine)] == ["queued", "assigned"]
    agree()


def disagreements() -> int:
    """Return the differences when all recorded rounds are decided again."""
    return sum(not item.agrees for done in Round.objects.all() for item in replays.replay(done))


def test_a_round_beside_a_reservation_replays_as_it_was(
    stage: Cast, machine: Machine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = book(stage)
    ask(stage, tenant=stage.globex, core_request=50)
    ask(stage, tenant=stage.globex, core_request=20)
    run_round(stage.pool)
    clock.advance(hours=1)
    drive()
    ask(stage, reservation=now(row), core_request=60)
    run_round(stage.pool)
    assert disagreements() == 0
    # Control: without each claim's reserved capacity it is another round.
    monkeypatch.setattr(replays, "_withheld", lambda step: {})
    assert disagreements() > 0


def test_when_it_ends_its_claims_end_and_all_is_given_back(stage: Cast, machine: Machine, clock: Clock) -> None:
    row = book(stage)
    clock.advance(hours=1)
    drive()
    claim, _ = placed(stage, machine, reservation=now(row), core_request=40)
    clock.advance(hours=2)
    drive()
    assert (now(row).ending, state(claim)) == ("ended", "releasing")
    machine.obey()
    assert (state(claim), used(stage.acme)["core_percent"]) == ("released", 0)
    why = AuditEvent.objects.get(action="claim.release").after
    assert why == {"why": "its reservation exam has ended"}
    agree()


def test_given_back_early_its_charge_goes_at_once_and_its_claims_follow(
    stage: Cast, machine: Machine, clock: Clock
) -> None:
    row = book(stage)
    clock.advance(hours=1)
    drive()
    claim, _ = placed(stage, machine, reservation=now(row), core_request=40)
    release_reservation(principal=SYSTEM, reservation=now(row))
    assert (row.state, used(stage.acme)["core_percent"]) == ("active", 40)
    assert now(row).ending == "early"
    drive()
    machine.obey()
    assert (state(claim), used(stage.acme)["core_percent"]) == ("released", 0)
    agree()


def test_without_quota_it_waits_with_the_reason_and_is_given_back_after_its_grace(
    stage: Cast, machine: Machine, clock: Clock
) -> None:
    row = book(stage, grace_seconds=None)
    other = Machine("gpu2", stage.pool, gpus=2)
    running, _ = placed(stage, other, core_request=100, gpu_count=2)
    clock.advance(hours=1)
    assert (drive(), drive()) == (1, 0)
    assert now(row).state == "booked"
    assert "0 % of 200 % available" in str(row.reason)
    release_claim(principal=SYSTEM, claim=running)
    other.obey()
    drive()
    assert (now(row).state, row.reason) == ("active", None)
    again = book(stage, 1.5, 2, core_request=20)
    ask(stage, core_request=100)
    ask(stage, core_request=40)
    clock.advance(hours=0.5)
    assert drive() >= 1
    clock.advance(seconds=900)
    drive()
    assert now(again).ending == "no-quota"
    agree()


def test_one_that_waits_for_quota_past_its_start_can_be_extended(stage: Cast, machine: Machine, clock: Clock) -> None:
    row = book(stage, grace_seconds=None)
    placed(stage, Machine("gpu2", stage.pool, gpus=2), core_request=100, gpu_count=2)
    clock.advance(hours=2)
    drive()
    assert now(row).state == "booked"
    path = f"reservations/{row.uid}/"
    longer = stage.max.patch(path, {"end_at": f"{START + 5 * HOUR:%Y-%m-%dT%H:%M:%SZ}"}, If_Match="*")
    assert (longer.status, longer.body["end_at"]) == (200, "2026-06-15T17:00:00Z")
    earlier = stage.max.patch(path, {"start_at": f"{START + HOUR:%Y-%m-%dT%H:%M:%SZ}"}, If_Match="*")
    assert earlier.code == "window-invalid"


def test_a_release_never_fails_where_the_quota_was_lowered_meanwhile(
    stage: Cast, machine: Machine, clock: Clock
) -> None:
    row = book(stage)
    clock.advance(hours=1)
    drive()
    claim, _ = placed(stage, machine, reservation=now(row), core_request=40)
    quota = stage.acme.quotas.get(resource="core_percent")
    stage.olga.patch(f"quotas/{quota.pk}/", {"hard": 10}, If_Match="*")
    release_claim(principal=SYSTEM, claim=claim)
    machine.obey()
    assert (state(claim), now(row).charged["core_percent"]) == ("released", 20)
    agree()
    stage.olga.patch(f"quotas/{quota.pk}/", {"hard": 100}, If_Match="*")
    assert drive() == 1
    assert now(row).charged["core_percent"] == 60
    agree()


def test_gpus_that_are_gone_when_it_begins_are_replaced(stage: Cast, machine: Machine, clock: Clock) -> None:
    row = book(stage)
    Machine("gpu2", stage.pool, gpus=1)
    clock.advance(hours=1)
    lose(machine)
    drive()
    assert [gpu.node.name for gpu in now(row).gpus.all()] == ["gpu2"]
    assert actions() == ["create", "begin", "move"]


def test_a_claim_may_not_grow_into_what_is_reserved(stage: Cast, machine: Machine) -> None:
    claim, _ = placed(stage, machine, core_request=30)
    book(stage)
    with pytest.raises(NoRoom):
        resize_claim(principal=SYSTEM, claim=claim, changes=ClaimChanges(core_request=50))
    resize_claim(principal=SYSTEM, claim=claim, changes=ClaimChanges(core_request=40))


# Lending


def lending(stage: Cast) -> None:
    change_pool(principal=SYSTEM, pool=stage.pool, lend_reserved=True)
    stage.pool.refresh_from_db()


def borrower(stage: Cast, core: int, **facts: Any) -> Claim:
    return ask(stage, tenant=stage.globex, core_request=core, best_effort=True, **facts)


def test_best_effort_claims_borrow_reserved_room_and_go_after_a_notice(
    stage: Cast, machine: Machine, clock: Clock
) -> None:
    lending(stage)
    book(stage)
    claim, beside = borrower(stage, 60), borrower(stage, 40)
    run_round(stage.pool)
    machine.obey()
    assert (state(claim), state(beside)) == ("active", "active")
    clock.advance(minutes=57)
    assert drive() == 0
    clock.advance(minutes=1)
    assert drive() == 1
    # No more victims than needed.
    assert (state(claim), state(beside)) == ("active", "active")
    assert [item.yields_at for item in (claim, beside)] == [START + HOUR, None]
    assert AuditEvent.objects.get(action="claim.notice").tenant == stage.globex
    clock.advance(minutes=2)
    drive()
    assert (state(claim), state(beside)) == ("releasing", "active")
    agree()


def test_a_borrower_that_is_not_in_the_way_after_all_is_spared(stage: Cast, machine: Machine, clock: Clock) -> None:
    lending(stage)
    row = book(stage)
    claim = borrower(stage, 60)
    run_round(stage.pool)
    clock.advance(minutes=58)
    drive()
    assert state(claim) == "assigned"
    assert claim.yields_at is not None
    release_reservation(principal=SYSTEM, reservation=row)
    drive()
    assert state(claim) == "assigned"
    assert claim.yields_at is None


def test_control_where_the_pool_does_not_lend_nobody_borrows(stage: Cast, machine: Machine) -> None:
    book(stage)
    claim = borrower(stage, 60)
    run_round(stage.pool)
    assert state(claim) == "queued"


def test_a_booking_does_not_mind_who_would_give_way(stage: Cast, machine: Machine) -> None:
    lending(stage)
    borrower(stage, 90)
    run_round(stage.pool)
    assert book(stage).state == "booked"


# Idleness


def make_claim(stage: Cast, machine: Machine, clock: Clock) -> tuple[Reservation, Claim, Assignment]:
    row = book(stage, idle_seconds=60)
    clock.advance(hours=1)
    drive()
    return row, *placed(stage, machine, reservation=now(row), core_request=60)


def test_an_idle_one_is_reported_once_and_not_when_it_works_again(stage: Cast, machine: Machine, clock: Clock) -> None:
    row, _, assignment = make_claim(stage, machine, clock)
    clock.advance(seconds=90)
    steady(assignment, 1.0, seconds=60)
    assert (drive(), drive()) == (1, 0)
    event = AuditEvent.objects.get(action="reservation.idle")
    assert event.after == {"used_percent": 1.7, "seconds": 60, "reclaimed": False}
    clock.advance(seconds=90)
    steady(assignment, 50.0, seconds=60)
    assert drive() == 1
    assert (now(row).state, row.idle_since) == ("active", None)


def test_an_idle_one_is_reclaimed_where_the_pool_says_so(stage: Cast, machine: Machine, clock: Clock) -> None:
    change_pool(principal=SYSTEM, pool=stage.pool, reclaim_idle=True)
    row, claim, assignment = make_claim(stage, machine, clock)
    for _ in range(3):
        clock.advance(seconds=61)
        steady(assignment, 1.0, seconds=60)
        drive()
    assert (now(row).ending, state(claim)) == ("idle", "releasing")


def test_control_where_nothing_is_known_nothing_is_reclaimed(stage: Cast, machine: Machine, clock: Clock) -> None:
    change_pool(principal=SYSTEM, pool=stage.pool, reclaim_idle=True)
    row, _, _ = make_claim(stage, machine, clock)
    clock.advance(seconds=600)
    drive()
    assert (now(row).state, row.idle_since) == ("active", None)
