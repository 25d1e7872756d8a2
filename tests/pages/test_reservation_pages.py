"""Reservations on pages: the week, booking with a preview, releasing, and visibility."""

from datetime import timedelta
from typing import Any

from django.test import Client
from django.utils import timezone

from apps.quotas.principals import SYSTEM
from apps.reservations.lifecycle import create_reservation
from apps.scheduling.models import Reservation
from tests.cast import Cast, Machine, placed
from tests.pages.conftest import SignIn

HOUR = timedelta(hours=1)


def text(client: Client, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200
    return " ".join(answer.content.decode().split())


def book(cast: Cast, **asked: Any) -> Reservation:
    now = timezone.now()
    facts: dict[str, Any] = {"tenant": cast.acme, "pool": cast.pool, "name": "exam", "core_request": 60}
    facts |= {"memory_mib": 1024, "start_at": now + HOUR, "end_at": now + 3 * HOUR}
    return create_reservation(principal=SYSTEM, **(facts | asked))[0]


def form(cast: Cast, **more: Any) -> dict[str, Any]:
    begin = timezone.localtime() + HOUR
    asked = {"tenant": cast.acme.slug, "name": "class", "pool": cast.pool.name, "gpu_count": 1, "core_request": 100}
    window = {"start_at": f"{begin:%Y-%m-%dT%H:%M}", "end_at": f"{begin + HOUR:%Y-%m-%dT%H:%M}"}
    return {**asked, "memory_mib": "1 GiB", **window, **more}


def test_the_week_shows_ones_own_by_name_and_others_without(cast: Cast, machine: Machine, browser: SignIn) -> None:
    # Late on a Sunday, a start in an hour is in the next week.
    week = f"/reservations/?week={book(cast).start_at:%Y-%m-%d}"
    book(cast, tenant=cast.globex, name="secret")
    placed(cast, machine, name="train", core_request=10)
    mine = text(browser("vera"), week)
    assert "acme/exam, 60 %" in mine
    assert "acme/train, 10 % without an end" in mine
    assert "a reservation of another tenant, 60 %" in mine
    assert "secret" not in mine
    assert "globex/secret" in text(browser("gus"), week)


def test_another_week_another_pool_and_nonsense_are_shown_too(cast: Cast, machine: Machine, browser: SignIn) -> None:
    book(cast, start_at=timezone.now() + timedelta(days=7), end_at=timezone.now() + timedelta(days=7, hours=2))
    vera = browser("vera")
    later = (timezone.now() + timedelta(days=7)).date().isoformat()
    assert "acme/exam" in text(vera, f"/reservations/?week={later}")
    assert "No GPU found" in text(vera, "/reservations/?node=gpu9")
    for nonsense in ("week=tomorrow", "week=0001-01-01", "week=9999-12-31", "pool=nowhere", "page=x"):
        assert "Reservations" in text(vera, f"/reservations/?{nonsense}")
    living = vera.get("/reservations/", headers={"HX-Request": "true"}).content.decode()
    assert "<html" not in living


def test_looking_first_books_nothing_and_names_free_windows(cast: Cast, machine: Machine, browser: SignIn) -> None:
    max_ = browser("max")
    assert "It fits, on 1 GPU." in max_.post("/reservations/new/", form(cast, check="")).content.decode()
    book(cast, gpu_count=4, core_request=100, end_at=timezone.now() + 4 * HOUR)
    answer = max_.post("/reservations/new/", form(cast, check="")).content.decode()
    assert "Free windows of this length" in answer
    window = answer.partition('name="window" value="')[2].partition('"')[0]
    assert "It fits, on 1 GPU." in max_.post("/reservations/new/", form(cast, window=window)).content.decode()
    assert Reservation.objects.count() == 1


def test_booking_leads_to_the_reservation_and_giving_back_ends_it(
    cast: Cast, machine: Machine, browser: SignIn
) -> None:
    max_ = browser("max")
    answer = max_.post("/reservations/new/", form(cast, book=""))
    assert answer.status_code == 302
    row = Reservation.objects.get()
    page = text(max_, answer["Location"])
    assert "Booked" in page
    assert "acme/class is booked." in page
    assert max_.post(f"/reservations/{row.uid}/release/").status_code == 302
    assert "Given back before it began" in text(max_, answer["Location"])


def test_a_wrong_booking_is_refused_in_the_form(cast: Cast, machine: Machine, browser: SignIn) -> None:
    max_ = browser("max")
    begin = timezone.localtime() + HOUR
    backwards = form(cast, end_at=f"{begin - HOUR:%Y-%m-%dT%H:%M}", book="")
    for wrong in (backwards, form(cast, core_request=101, book=""), form(cast, start_at="soon", book=""), {"book": ""}):
        answer = max_.post("/reservations/new/", wrong)
        assert answer.status_code == 422
        assert 'role="alert"' in answer.content.decode()
    assert not Reservation.objects.exists()


def test_a_window_that_is_taken_meanwhile_is_refused_with_the_free_ones(
    cast: Cast, machine: Machine, browser: SignIn
) -> None:
    book(cast, gpu_count=4, core_request=100, end_at=timezone.now() + 4 * HOUR)
    answer = browser("max").post("/reservations/new/", form(cast, book=""))
    assert answer.status_code == 422
    assert "Free windows of this length" in answer.content.decode()
    assert Reservation.objects.count() == 1


def test_a_viewer_looks_and_a_foreign_tenant_finds_nothing(cast: Cast, machine: Machine, browser: SignIn) -> None:
    row = book(cast)
    vera, gus = browser("vera"), browser("gus")
    assert "Cancel" not in text(vera, f"/reservations/{row.uid}/")
    assert vera.post(f"/reservations/{row.uid}/release/").status_code == 403
    for method, path in ((gus.get, ""), (gus.post, "release/")):
        assert method(f"/reservations/{row.uid}/{path}").status_code == 404
    row.refresh_from_db()
    assert row.state == "booked"


def test_one_that_nobody_claims_says_when_it_gives_itself_back(cast: Cast, machine: Machine, browser: SignIn) -> None:
    row = book(cast, grace_seconds=900)
    row.change(state="active", started_at=timezone.now())
    page = text(browser("max"), f"/reservations/{row.uid}/")
    assert "Nobody claims" in page
    assert "It is released at" in page
    assert "Give back early" in page
