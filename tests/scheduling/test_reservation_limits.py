"""Reservations and exhausted limits: a refused claim leaves the reservation and the rounds as they were."""

from datetime import timedelta
from typing import Any

import pytest

from apps.accounting.services.ledger_check import differences
from apps.nodes.services.nodes import change_node
from apps.quotas.models import AuditEvent, User
from apps.quotas.principals import SYSTEM
from apps.quotas.services import member_limits, tenants
from apps.reservations.clock import drive
from apps.reservations.lifecycle import change_reservation, create_reservation
from apps.scheduling.models import Claim, Reservation
from apps.scheduling.services.claims.resize import resize_claim
from apps.scheduling.services.claims.spec import ClaimChanges
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import GIB, Cast, Machine, ask, assert_books_agree, give, give_plenty, used
from tests.scheduling.clock import START, Clock

HOUR = timedelta(hours=1)


@pytest.fixture
def stage(clock: Clock, cast: Cast) -> Cast:
    give(cast.acme, core_percent=200, memory_mib=None)
    give_plenty(cast.globex)
    Machine("gpu1", cast.pool, gpus=1)
    return cast


def book(stage: Cast, **facts: Any) -> Reservation:
    asked: dict[str, Any] = {"name": "exam", "core_request": 60, "memory_mib": 8 * GIB, "grace_seconds": 900}
    asked |= {"start_at": START + HOUR, "end_at": START + 3 * HOUR, **facts}
    return create_reservation(principal=SYSTEM, tenant=stage.acme, pool=stage.pool, **asked)[0]


def begun(stage: Cast, clock: Clock) -> Reservation:
    row = book(stage)
    clock.advance(hours=1)
    drive()
    row.refresh_from_db()
    assert row.state == "active"
    return row


def waits_for_its_member(stage: Cast, row: Reservation) -> Claim:
    """Create a claim of Max's in the reservation, which waits for his member limit."""
    max_ = User.objects.get(username="max")
    member_limits.create_limit(principal=SYSTEM, tenant=stage.acme, user=max_, resource="core_percent", hard=10)
    body = {"tenant": "acme", "core_request": 60, "memory_mib": 100, "reservation": str(row.uid), "priority": 9}
    made = stage.max.post("claims/", {**body, "when_over_quota": "wait"})
    assert made.status == 201, made.body
    assert made.body["reasons"][0]["code"] == "member-limit-exceeded"
    return Claim.objects.get(uid=made.body["uid"])


def test_a_claim_that_waits_for_quota_leaves_the_reservation_its_charge(stage: Cast, clock: Clock) -> None:
    row = begun(stage, clock)
    waits_for_its_member(stage, row)
    row.refresh_from_db()
    assert (row.charged["core_percent"], used(stage.acme)["core_percent"]) == (60, 60)
    assert_books_agree()
    assert not differences()


def test_a_round_goes_on_where_others_have_the_rest_of_the_reservation(stage: Cast, clock: Clock) -> None:
    row = begun(stage, clock)
    waiting = waits_for_its_member(stage, row)
    ready = ask(stage, reservation=row, core_request=60, memory_mib=100)
    run_round(stage.pool)
    waiting.refresh_from_db()
    ready.refresh_from_db()
    assert (ready.state, waiting.state) == ("assigned", "queued")
    assert_books_agree()
    assert not differences()


def test_it_says_once_that_the_quota_has_no_room_though_its_numbers_change(stage: Cast, clock: Clock) -> None:
    row = book(stage)
    first = ask(stage, core_request=90, memory_mib=100)
    clock.advance(hours=1)
    ask(stage, core_request=90, memory_mib=100)
    assert drive() == 1
    for _ in range(3):
        clock.advance(seconds=2)
        first.refresh_from_db()
        resize_claim(principal=SYSTEM, claim=first, changes=ClaimChanges(core_request=first.core_request - 1))
        drive()
    assert AuditEvent.objects.filter(action="reservation.wait").count() == 1
    row.refresh_from_db()
    assert (row.state, row.reason and "23 % of 200 %" in row.reason) == ("booked", True)
    clock.advance(seconds=900)
    first.refresh_from_db()
    resize_claim(principal=SYSTEM, claim=first, changes=ClaimChanges(core_request=first.core_request - 1))
    drive()
    row.refresh_from_db()
    assert (row.state, row.ending) == ("released", "no-quota")


def test_another_window_begins_with_nothing_said_yet(stage: Cast, clock: Clock) -> None:
    row = book(stage)
    ask(stage, core_request=90, memory_mib=100)
    ask(stage, core_request=90, memory_mib=100)
    clock.advance(hours=1)
    drive()
    row.refresh_from_db()
    assert row.reason
    row = change_reservation(principal=SYSTEM, reservation=row, start_at=START + 2 * HOUR, end_at=START + 4 * HOUR)
    assert row.reason is None


def test_a_round_sees_what_was_booked_on_a_node_that_came_from_another_pool(stage: Cast, clock: Clock) -> None:
    row = book(stage)
    other = tenants.create_pool(principal=SYSTEM, name="other")
    change_node(principal=SYSTEM, node=row.gpus.get().node, pool=other)
    claim = ask(stage, tenant=stage.globex, pool=other, core_request=60, memory_mib=100)
    run_round(other)
    claim.refresh_from_db()
    assert [reason["code"] for reason in claim.reasons] == ["reserved"]
