"""Changing a reservation on its page: preview, change, and conflicts."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from apps.quotas.principals import SYSTEM
from apps.reservations.lifecycle import change_reservation, release_reservation
from apps.scheduling.models import Reservation
from tests.cast import Cast, Machine
from tests.pages.conftest import SignIn
from tests.pages.test_reservation_pages import HOUR, book


@pytest.fixture
def exam(cast: Cast, machine: Machine) -> Reservation:
    """Create a reservation of acme's for tomorrow."""
    begin = timezone.localtime().replace(hour=10, minute=0, second=0, microsecond=0) + timedelta(days=1)
    return book(cast, start_at=begin, end_at=begin + 2 * HOUR)


def typed(at: datetime) -> str:
    return f"{timezone.localtime(at):%Y-%m-%dT%H:%M}"


def submit(client: Client, row: Reservation, act: str, **more: Any) -> tuple[int, str]:
    """Post the form as a browser does, with these changes."""
    asked = {"name": row.name, "end_at": typed(row.end_at), "idle_percent": 5, "idle_minutes": 30, "grace_minutes": 15}
    asked |= {"version": row.version, act: ""} | ({"start_at": typed(row.start_at)} if row.state == "booked" else {})
    answer = client.post(f"/reservations/{row.uid}/change/", asked | more, follow=True)
    return answer.status_code, " ".join(answer.content.decode().split())


def test_a_look_changes_nothing_and_the_change_does(exam: Reservation, browser: SignIn) -> None:
    max_ = browser("max")
    assert f"/reservations/{exam.uid}/change/" in max_.get(f"/reservations/{exam.uid}/").content.decode()
    later = exam.end_at + HOUR
    _, page = submit(max_, exam, "check", end_at=typed(later), name="final")
    assert "It fits, where it is: gpu1 GPU" in page
    assert "Nothing is changed yet." in page
    assert Reservation.objects.get().version == exam.version
    _, page = submit(max_, exam, "apply", end_at=typed(later), name="final", grace_minutes="", idle_minutes=60)
    assert "acme/final is changed." in page
    changed = Reservation.objects.get()
    assert (changed.name, changed.end_at) == ("final", later)
    assert (changed.grace_seconds, changed.idle_seconds, changed.idle_percent) == (None, 3600, 5)


def test_what_does_not_fit_is_said_with_free_windows(cast: Cast, exam: Reservation, browser: SignIn) -> None:
    for _ in range(4):
        book(cast, tenant=cast.globex, start_at=exam.end_at, end_at=exam.end_at + 4 * HOUR)
    status, page = submit(browser("max"), exam, "apply", end_at=typed(exam.end_at + HOUR))
    assert "It does not fit as asked" in page
    assert "Free windows of this length" in page
    assert "globex" not in page
    assert Reservation.objects.get(pk=exam.pk).end_at == exam.end_at
    begin = exam.end_at + 4 * HOUR
    window = f"{typed(begin)}/{typed(begin + 3 * HOUR)}"
    status, page = submit(browser("max"), exam, "window", window=window)
    assert (status, "Nothing is changed yet." in page) == (200, True)


def test_who_was_faster_is_named_and_what_was_typed_stays(exam: Reservation, browser: SignIn) -> None:
    change_reservation(principal=SYSTEM, reservation=exam, name="theirs")
    _, page = submit(browser("max"), exam, "apply", name="mine")
    assert "Changed by" in page
    assert 'value="mine"' in page
    assert Reservation.objects.get().name == "theirs"
    exam.refresh_from_db()
    submit(browser("max"), exam, "apply", name="mine")
    assert Reservation.objects.get().name == "mine"


def test_of_one_that_has_begun_only_the_end_moves(exam: Reservation, browser: SignIn) -> None:
    begun = timezone.now() - HOUR / 2
    Reservation.objects.update(state="active", start_at=begun, started_at=begun)
    exam.refresh_from_db()
    max_ = browser("max")
    assert 'name="start_at"' not in max_.get(f"/reservations/{exam.uid}/change/").content.decode()
    submit(max_, exam, "apply", end_at=typed(exam.end_at + HOUR), start_at=typed(begun - HOUR))
    changed = Reservation.objects.get()
    assert (changed.start_at, changed.end_at) == (begun, exam.end_at + HOUR)


def test_whose_it_is_not_and_what_is_over_is_not_changed(exam: Reservation, browser: SignIn) -> None:
    way = f"/reservations/{exam.uid}/change/"
    assert browser("vera").get(way).status_code == 403
    assert way not in browser("vera").get(f"/reservations/{exam.uid}/").content.decode()
    assert browser("gus").get(way).status_code == 404
    assert submit(browser("max"), exam, "apply", end_at=typed(exam.start_at))[0] == 422
    assert submit(browser("max"), exam, "apply", name="mine", version="x")[1].count("Changed by") == 1
    release_reservation(principal=SYSTEM, reservation=exam)
    assert "is over: book a new one" in browser("max").get(way, follow=True).content.decode()
