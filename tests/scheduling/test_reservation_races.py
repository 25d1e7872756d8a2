"""Races for windows, each beside a control: the same race without the guard goes wrong."""

import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db.models import Q
from django.utils import timezone

from apps.accounting.services.ledger_check import differences
from apps.nodes.models import Gpu
from apps.quotas.models import AuditEvent
from apps.quotas.principals import SYSTEM
from apps.reservations import booking, clock, lifecycle
from apps.reservations.clock import drive
from apps.reservations.lifecycle import create_reservation
from apps.scheduling.core import calendar
from apps.scheduling.models import Claim, Reservation
from apps.scheduling.services.cycles import commits, rounds
from apps.scheduling.services.cycles.rounds import run_round
from apps.scheduling.services.fleet.reserved import Guard, holds_of, microseconds
from tests.cast import Cast, Machine, ask, assert_books_agree, give, used
from tests.racing import outcomes, race

pytestmark = pytest.mark.django_db(transaction=True)

RACERS = pytest.mark.parametrize("racers", [8, pytest.param(32, marks=pytest.mark.long)])
# Long enough for every racer to read the same rows.
A_MOMENT_SECONDS = 0.1


def book(cast: Cast, core: int = 100, *, hours: float = 1) -> Reservation:
    start = timezone.now() + timedelta(hours=hours)
    facts: dict[str, Any] = {"name": "r", "core_request": core, "memory_mib": 1, "grace_seconds": None}
    window = {"start_at": start, "end_at": start + timedelta(hours=1)}
    return create_reservation(principal=SYSTEM, tenant=cast.acme, pool=cast.pool, **window, **facts)[0]


def overfull() -> list[str]:
    """Return GPUs that are booked beyond their capacity, at any later time."""
    memory = dict(Gpu.objects.values_list("uuid", "memory_mib"))
    now = timezone.now()
    return calendar.overfull(holds_of(Q(), now=now), memory, microseconds(now), calendar.FOREVER)


def slowly(act: Callable[..., Any]) -> Callable[..., Any]:
    def after_a_moment(*args: Any, **facts: Any) -> Any:
        answer = act(*args, **facts)
        time.sleep(A_MOMENT_SECONDS)
        return answer

    return after_a_moment


def remove_guards(wanted: Any) -> list[list[Gpu]]:
    """Remove the lock and the second check."""
    return [list(Gpu.objects.filter(uuid__in=gpus)) for _, gpus in wanted]


def no_lock(*_: Any) -> None:
    pass


# The last window


@RACERS
def test_the_last_window_goes_to_one(real_cast: Cast, racers: int) -> None:
    give(real_cast.acme, core_percent=None, memory_mib=None)
    Machine("gpu1", real_cast.pool, gpus=1)
    results = race([partial(book, real_cast)] * racers, at_once=racers)
    assert outcomes(results) == {"Reservation": 1, "WindowTaken": racers - 1}
    assert not overfull()


def test_control_without_locks_the_last_window_goes_to_several(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(real_cast.acme, core_percent=None, memory_mib=None)
    Machine("gpu1", real_cast.pool, gpus=1)
    monkeypatch.setattr(lifecycle, "lock", no_lock)
    monkeypatch.setattr(booking, "_locked", slowly(remove_guards))
    assert outcomes(race([partial(book, real_cast)] * 8))["Reservation"] > 1
    assert overfull()


@RACERS
def test_the_last_of_a_quota_is_booked_by_one(real_cast: Cast, racers: int) -> None:
    give(real_cast.acme, core_percent=100, memory_mib=None)
    Machine("gpu1", real_cast.pool, gpus=8)
    results = race([partial(book, real_cast, 60)] * racers, at_once=racers)
    assert outcomes(results) == {"Reservation": 1, "QuotaExceeded": racers - 1}


def test_control_without_the_tenants_lock_a_quota_is_booked_several_times(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(real_cast.acme, core_percent=100, memory_mib=None)
    Machine("gpu1", real_cast.pool, gpus=8)
    monkeypatch.setattr(lifecycle, "lock", no_lock)
    monkeypatch.setattr(booking, "refuse_over_quota", slowly(booking.refuse_over_quota))
    assert outcomes(race([partial(book, real_cast, 60)] * 8))["Reservation"] > 1


# A booking between a round's snapshot and its commit, and a placement between a booking's read and its lock


def booked_meanwhile(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> Claim:
    give(cast.acme, core_percent=None, memory_mib=None)
    Machine("gpu1", cast.pool, gpus=1)
    commit, done = commits.commit, list[Reservation]()

    def book_first(*args: Any, **facts: Any) -> Any:
        if not done:
            done.append(book(cast))
        return commit(*args, **facts)

    monkeypatch.setattr(rounds, "commit", book_first)
    claim = ask(cast, core_request=50)
    run_round(cast.pool)
    claim.refresh_from_db()
    assert done
    return claim


def test_what_is_booked_between_a_rounds_look_and_its_commit_stays_free(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = booked_meanwhile(real_cast, monkeypatch)
    assert (claim.state, [reason["code"] for reason in claim.reasons]) == ("queued", ["reserved"])
    assert not overfull()


def test_control_a_commit_that_does_not_look_again_is_in_the_way(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Guard, "admits", lambda *_: True)
    assert booked_meanwhile(real_cast, monkeypatch).state == "assigned"
    assert overfull()


def test_a_claim_placed_between_a_bookings_look_and_its_lock_is_seen(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(real_cast.acme, core_percent=None, memory_mib=None)
    Machine("gpu1", real_cast.pool, gpus=1)
    ask(real_cast, core_request=50)
    # In a connection of its own, as another process does it.
    look, done = booking.outlook, list[Any]()

    def place_after(*args: Any, **facts: Any) -> Any:
        seen = look(*args, **facts)
        if not done:
            done.extend(race([partial(run_round, real_cast.pool)]))
        return seen

    monkeypatch.setattr(booking, "outlook", place_after)
    assert outcomes([*race([partial(book, real_cast)]), *done]) == {"WindowTaken": 1, "Round": 1}
    assert not overfull()


def test_control_a_booking_that_does_not_look_again_is_not_free(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(real_cast.acme, core_percent=None, memory_mib=None)
    Machine("gpu1", real_cast.pool, gpus=1)
    ask(real_cast, core_request=50)
    monkeypatch.setattr(booking, "_locked", remove_guards)
    look = booking.outlook

    def place_after(*args: Any, **facts: Any) -> Any:
        seen = look(*args, **facts)
        race([partial(run_round, real_cast.pool)])
        return seen

    monkeypatch.setattr(booking, "outlook", place_after)
    assert outcomes(race([partial(book, real_cast)])) == {"Reservation": 1}
    assert overfull()


# Several clocks


def begun(cast: Cast, racers: int) -> int:
    """Return how often it began."""
    give(cast.acme, core_percent=None, memory_mib=None)
    Machine("gpu1", cast.pool, gpus=1)
    book(cast, 60, hours=0)
    race([drive] * racers, at_once=racers)
    return AuditEvent.objects.filter(action="reservation.begin").count()


@RACERS
def test_it_begins_once_however_many_clocks_there_are(real_cast: Cast, racers: int) -> None:
    assert begun(real_cast, racers) == 1
    assert used(real_cast.acme)["core_percent"] == 60
    assert_books_agree()
    assert not differences()


def test_control_without_the_rows_lock_it_begins_several_times(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlocked(row: Reservation) -> Reservation:
        read = Reservation.objects.select_related("tenant", "pool").get(pk=row.pk)
        time.sleep(A_MOMENT_SECONDS)
        return read

    monkeypatch.setattr(clock, "locked", unlocked)
    assert begun(real_cast, 8) > 1
