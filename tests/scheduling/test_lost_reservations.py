"""Reservations on machines that are lost, removed or not measured, and one that fails among others."""

import logging
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.nodes.models import Node
from apps.quotas.models import AuditEvent
from apps.quotas.principals import SYSTEM
from apps.reservations import clock as reservations_clock
from apps.reservations.clock import drive
from apps.reservations.lifecycle import create_reservation, release_reservation
from apps.scheduling.models import Claim, Reservation
from apps.scheduling.services.claims import leases
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.claims.sharing import change_pool
from apps.scheduling.services.reclaiming.forgetting import forget_node
from tests.cast import GIB, Cast, Machine, ask, assert_books_agree, give, lose, placed, used
from tests.measurements import steady
from tests.scheduling.clock import START, Clock

HOUR = timedelta(hours=1)


@pytest.fixture
def stage(clock: Clock, cast: Cast) -> Cast:
    give(cast.acme, core_percent=300, memory_mib=None)
    return cast


def book(stage: Cast, start: float = 0, end: float = 3, **facts: Any) -> Reservation:
    window: dict[str, Any] = {"start_at": START + start * HOUR, "end_at": START + end * HOUR}
    asked = {"tenant": stage.acme, "pool": stage.pool, "name": "exam", "core_request": 60, "memory_mib": 8 * GIB}
    return create_reservation(principal=SYSTEM, **window, **{**asked, "grace_seconds": None, **facts})[0]


def now(row: Reservation) -> Reservation:
    row.refresh_from_db()
    return row


def silent(machine: Machine, clock: Clock) -> None:
    clock.advance(minutes=1)
    lose(machine)


def test_an_active_one_on_a_forgotten_node_ends_and_charges_nothing(stage: Cast, clock: Clock) -> None:
    machine = Machine("gpu1", stage.pool, gpus=1)
    row = book(stage)
    drive()
    claim, _ = placed(stage, machine, reservation=now(row), core_request=20, memory_mib=2 * GIB)
    waiting = ask(stage, reservation=now(row), core_request=20, memory_mib=2 * GIB)
    assert used(stage.acme)["core_percent"] == 60
    silent(machine, clock)
    forget_node(principal=SYSTEM, node=Node.objects.get(pk=machine.node.pk))
    assert (now(row).state, row.ending) == ("released", "forgotten")
    assert_books_agree()
    event = AuditEvent.objects.get(action="reservation.release")
    assert event.after == {"why": "Its machine was lost, and an operator has given it up"}
    drive()
    claim.refresh_from_db()
    waiting.refresh_from_db()
    assert (claim.state, waiting.state, used(stage.acme)["core_percent"]) == ("released", "released", 0)
    assert_books_agree()


def test_one_that_begins_on_a_forgotten_node_moves_or_ends(stage: Cast, clock: Clock) -> None:
    machine = Machine("gpu1", stage.pool, gpus=1)
    row = book(stage, start=1)
    silent(machine, clock)
    forget_node(principal=SYSTEM, node=Node.objects.get(pk=machine.node.pk))
    assert now(row).state == "booked"
    clock.advance(hours=1)
    drive()
    drive()
    assert (now(row).state, row.ending, used(stage.acme)["core_percent"]) == ("released", "forgotten", 0)


def test_one_on_a_lost_node_says_so_until_the_node_is_back(stage: Cast, clock: Clock) -> None:
    machine = Machine("gpu1", stage.pool, gpus=1)
    row = book(stage)
    drive()
    silent(machine, clock)
    assert (drive(), drive()) == (1, 0)
    shown = stage.max.get(f"reservations/{row.uid}/").body
    assert (shown["state"], shown["lost_since"]) == ("active", "2026-06-15T12:01:00Z")
    assert shown["charged"]["core_percent"] == 60
    assert AuditEvent.objects.get(action="reservation.lost").after == {"nodes": ["gpu1"]}
    clock.advance(seconds=1)
    assert (drive(), drive()) == (1, 0)
    assert now(row).lost_since is None
    assert AuditEvent.objects.filter(action="reservation.found").count() == 1


def test_one_that_fails_holds_up_no_other(
    stage: Cast, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Machine("gpu1", stage.pool, gpus=2)
    first, second = book(stage, name="unlucky", end=1), book(stage, end=1)
    starting = book(stage, start=2)
    drive()

    def raising(*, reservation: Reservation, **how: Any) -> Reservation:
        if reservation.name == "unlucky":
            raise ZeroDivisionError("as if by a mistake")
        return release_reservation(reservation=reservation, **how)

    monkeypatch.setattr(reservations_clock, "release_reservation", raising)
    clock.advance(hours=2)
    with caplog.at_level(logging.ERROR):
        drive()
    assert [now(row).state for row in (first, second, starting)] == ["active", "released", "active"]
    assert "as if by a mistake" in caplog.text


def test_a_lapsed_lease_that_fails_holds_up_no_other(
    stage: Cast, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = [ask(stage, name=name, lease_seconds=60) for name in ("unlucky", "train")]

    def raising(*, claim: Claim, **how: Any) -> Claim:
        if claim.name == "unlucky":
            raise ZeroDivisionError("as if by a mistake")
        return release_claim(claim=claim, **how)

    monkeypatch.setattr(leases, "release_claim", raising)
    clock.advance(seconds=90)
    assert leases.release_lapsed(now=clock.now) == 1
    assert [Claim.objects.get(pk=claim.pk).state for claim in claims] == ["pending", "released"]


def test_a_quiet_share_says_nothing_of_one_that_is_not_measured(stage: Cast, clock: Clock) -> None:
    change_pool(principal=SYSTEM, pool=stage.pool, reclaim_idle=True)
    machine = Machine("gpu1", stage.pool, gpus=2)
    row = book(stage, gpu_count=2, core_request=60, idle_percent=5, idle_seconds=60)
    drive()
    quiet, _ = [placed(stage, machine, reservation=now(row), core_request=60)[1] for _ in range(2)]
    for _ in range(4):
        clock.advance(seconds=61)
        steady(quiet, 1.0, seconds=60)
        drive()
    assert (now(row).state, row.idle_since) == ("active", None)


def test_what_was_idle_is_not_taken_back_while_its_machine_is_lost(stage: Cast, clock: Clock) -> None:
    change_pool(principal=SYSTEM, pool=stage.pool, reclaim_idle=True)
    machine = Machine("gpu1", stage.pool, gpus=1)
    row = book(stage, idle_percent=5, idle_seconds=600)
    drive()
    _, quiet = placed(stage, machine, reservation=now(row), core_request=60)
    clock.advance(seconds=660)
    steady(quiet, 1.0, seconds=600)
    drive()
    assert now(row).idle_since == clock.now
    clock.advance(seconds=130)
    lose(machine)
    drive()
    assert (now(row).state, row.lost_since) == ("active", clock.now)
    clock.advance(seconds=30)
    drive()
    assert (now(row).ending, row.lost_since) == ("idle", None), "control: heard again, it is known to be idle"


def test_its_samples_are_not_added_up_in_every_turn(stage: Cast, clock: Clock) -> None:
    machine = Machine("gpu1", stage.pool, gpus=1)
    row = book(stage, idle_percent=5, idle_seconds=600)
    drive()
    placed(stage, machine, reservation=now(row), core_request=20, memory_mib=2 * GIB)
    clock.advance(seconds=700)
    looks = 0
    for _ in range(30):
        with CaptureQueriesContext(connection) as asked:
            drive()
        looks += any("nodes_sample" in query["sql"] for query in asked)
        clock.advance(seconds=2)
    assert looks == 3
