"""Reservations through the API: booked where they fit, refused with the conflicts and the next free window."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from apps.console.reservations.week import rows_of
from apps.nodes.models import Gpu
from apps.quotas.models import AuditEvent
from apps.scheduling.models import Reservation
from tests.cast import GIB, Answer, Api, Cast, Machine, give, give_plenty, placed, used
from tests.scheduling.clock import START, Clock

HOUR = timedelta(hours=1)


@pytest.fixture
def platform(clock: Clock, cast: Cast) -> Cast:
    give_plenty(cast.acme, cast.globex)
    return cast


@pytest.fixture
def machine(platform: Cast) -> Machine:
    return Machine("gpu1", platform.pool, gpus=2)


def at(hours: float) -> str:
    return (START + hours * HOUR).isoformat().replace("+00:00", "Z")


def post(start: float = 1, end: float = 3, **facts: Any) -> dict[str, Any]:
    share = {"tenant": "acme", "name": "exam", "core_request": 100, "memory_mib": 8 * GIB}
    return {**share, "start_at": at(start), "end_at": at(end), **facts}


def book(who: Api, start: float = 1, end: float = 3, **facts: Any) -> Answer:
    return who.post("reservations/", post(start, end, **facts))


def preview(who: Api, start: float = 1, end: float = 3, **facts: Any) -> dict[str, Any]:
    answer = who.post("reservations/?dry_run=true", post(start, end, **facts))
    assert answer.status == 200, answer.body
    body: dict[str, Any] = answer.body
    return body


def test_a_window_is_booked_charges_nothing_yet_and_is_in_the_audit_log(platform: Cast, machine: Machine) -> None:
    made = book(platform.max)
    assert made.status == 201, made.body
    assert (made.body["state"], made.body["claimed"], made.body["series"]) == ("booked", False, None)
    assert [gpu["node"] for gpu in made.body["gpus"]] == ["gpu1"]
    assert made.headers["ETag"] == '"1"'
    assert set(used(platform.acme).values()) == {0}
    row = AuditEvent.objects.get(action="reservation.create")
    assert (row.object_id, row.tenant, row.after and row.after["core_request"]) == (
        made.body["uid"],
        platform.acme,
        100,
    )


def test_what_is_taken_is_refused_with_who_has_it_and_the_next_window(platform: Cast, machine: Machine) -> None:
    mine = book(platform.max, gpu_count=2).body
    refused = book(platform.max, 2, 4)
    assert (refused.status, refused.code) == (409, "window-taken")
    assert [(item["kind"], item["uid"], item["name"], item["gpus"]) for item in refused.body["conflicts"]] == [
        ("reservation", mine["uid"], "exam", 2)
    ]
    assert refused.body["windows"][0]["start_at"] == at(3)
    assert "earliest window of this length (2:00:00) begins 2026-06-15 15:00:00 UTC" in refused.body["detail"]
    assert Reservation.objects.count() == 1


def test_of_another_tenant_only_that_it_holds_something_and_until_when(platform: Cast, machine: Machine) -> None:
    book(platform.max, gpu_count=2, name="secret")
    refused = book(platform.gus, 2, 4, tenant="globex")
    assert refused.body["conflicts"] == [
        {
            "kind": "reservation",
            "tenant": None,
            "uid": None,
            "name": None,
            "gpus": 2,
            "until": at(3),
            "detail": "Held by another tenant until 2026-06-15 15:00:00 UTC",
        }
    ]
    assert b"secret" not in refused.raw
    assert b"acme" not in refused.raw
    shown = platform.gus.get("pools/default/calendar/")
    assert shown.body["gpus"][0]["intervals"][1]["core"] == 100
    assert b"secret" not in shown.raw
    assert b"acme" not in shown.raw


def test_a_preview_says_the_same_and_books_nothing(platform: Cast, machine: Machine) -> None:
    fits = preview(platform.max)
    assert (fits["dry_run"], fits["fits"], fits["conflicts"], len(fits["gpus"])) == (True, True, [], 1)
    assert Reservation.objects.count() == 0
    book(platform.max, gpu_count=2)
    taken = preview(platform.max, 2, 4)
    assert (taken["fits"], taken["gpus"], taken["windows"][0]["start_at"]) == (False, [], at(3))
    assert taken["reasons"][0]["code"] == "gpu-core"


def test_fractions_share_a_gpu_in_one_window(platform: Cast, machine: Machine) -> None:
    answers = [book(platform.max, core_request=50).status for _ in range(5)]
    assert answers == [201, 201, 201, 201, 409]


def test_a_running_claim_without_an_end_is_in_the_way_and_one_with_an_end_is_not(
    platform: Cast, machine: Machine
) -> None:
    placed(platform, machine, core_request=100, gpu_count=2, name="train")
    refused = book(platform.max)
    assert [(item["name"], item["until"]) for item in refused.body["conflicts"]] == [("train", None)]
    assert refused.body["windows"] == []
    assert "No window of this length will be free" in refused.body["detail"]


def test_a_claim_with_an_end_before_the_window_leaves_it_free(platform: Cast, machine: Machine) -> None:
    placed(platform, machine, core_request=100, gpu_count=2, time_limit_seconds=1800)
    assert book(platform.max).status == 201
    assert book(platform.max, 0.2, 0.8).body["windows"][0]["start_at"] == at(0.5)


def test_more_than_the_quota_is_refused_at_booking(clock: Clock, cast: Cast) -> None:
    Machine("gpu1", cast.pool, gpus=4)
    give(cast.acme, core_percent=150, memory_mib=None)
    assert book(cast.max).status == 201
    refused = book(cast.max, 2, 4)
    assert (refused.code, refused.body["used"], refused.body["hard"]) == ("quota-exceeded", 100, 150)
    assert book(cast.max, 3, 4).status == 201, "one after the other is within it"
    assert "quota-exceeded" in [reason["code"] for reason in preview(cast.max, 2, 4)["reasons"]]


def test_every_week_until_a_day_is_booked_at_once_or_not_at_all(platform: Cast, machine: Machine) -> None:
    first = book(platform.max, gpu_count=2, weekly_until=at(24 * 22)).body
    rows = Reservation.objects.filter(series=first["series"]).order_by("start_at")
    assert [row.start_at - START for row in rows] == [HOUR + timedelta(days=7) * week for week in range(4)]
    assert [row["uid"] for row in platform.max.get(f"reservations/?series={first['series']}").body["results"]] == [
        str(row.uid) for row in rows.order_by("-pk")
    ]
    before = Reservation.objects.count()
    assert book(platform.max, 24 * 7 - 10, 24 * 7 - 5, weekly_until=at(24 * 15)).status == 201
    assert book(platform.max, 24 * 7, 24 * 7 + 2, weekly_until=at(24 * 22)).code == "window-taken"
    assert Reservation.objects.count() == before + 2


@pytest.mark.parametrize(
    ("start", "end", "code"),
    [(3, 1, "window-invalid"), (-2, 1, "window-invalid"), (-3, -2, "window-invalid"), (1, 24 * 400, "window-invalid")],
)
def test_senseless_windows_are_refused(platform: Cast, machine: Machine, start: float, end: float, code: str) -> None:
    assert book(platform.max, start, end).code == code


def test_a_wrong_window_is_told_what_is_wrong_with_it(platform: Cast, machine: Machine) -> None:
    backwards, over = book(platform.max, 3, 1).body["detail"], book(platform.max, -3, -2).body["detail"]
    assert backwards.startswith("It must end after it begins")
    assert over.startswith("It would be over already")


def test_the_end_of_time_is_no_fault_of_ours(platform: Cast, machine: Machine) -> None:
    last = "9999-12-31T23:59:59Z"
    assert book(platform.max, start_at=last, end_at=last, weekly_until=last).code == "window-invalid"
    assert book(platform.max, weekly_until=last).code == "window-invalid"
    assert platform.max.get(f"pools/default/calendar/?from={last}").status == 200
    assert platform.max.get(f"pools/default/calendar/?to={last}").code == "period-invalid"
    first = "0001-01-01T00:00:00Z"
    assert book(platform.max, start_at=first).code == "window-invalid"
    assert platform.max.get(f"pools/default/calendar/?from={first}").status == 200


def test_a_booking_is_moved_to_another_window_and_a_stale_change_is_not(platform: Cast, machine: Machine) -> None:
    first = book(platform.max, gpu_count=2).body
    book(platform.max, 5, 6)
    path = f"reservations/{first['uid']}/"
    assert platform.max.patch(path, {"end_at": at(5.5)}).code == "window-taken"
    moved = platform.max.patch(path, {"start_at": at(2), "end_at": at(5)}, If_Match='"1"')
    assert (moved.status, moved.body["start_at"], moved.headers["ETag"]) == (200, at(2), '"2"')
    assert platform.max.patch(path, {"name": "late"}, If_Match='"1"').code == "stale-version"


def test_it_is_given_back_once_and_its_window_is_free_again(platform: Cast, machine: Machine) -> None:
    made = book(platform.max, gpu_count=2).body
    path = f"reservations/{made['uid']}/release/"
    assert platform.vera.post(path).code == "role-missing"
    assert platform.gus.post(path).code == "not-found"
    gone = platform.max.post(path)
    assert (gone.status, gone.body["state"], gone.body["ending"]) == (200, "released", "cancelled")
    assert platform.max.post(path).body["version"] == gone.body["version"]
    assert AuditEvent.objects.filter(action="reservation.release").count() == 1
    assert platform.max.patch(f"reservations/{made['uid']}/", {"name": "x"}).code == "wrong-state"
    assert book(platform.max, gpu_count=2).status == 201


def test_the_calendar_has_a_row_for_each_gpu_with_what_is_taken_when(platform: Cast, machine: Machine) -> None:
    book(platform.max, core_request=50, memory_mib=1000)
    book(platform.max, 2, 4, core_request=30, memory_mib=500)
    shown = platform.vera.get(f"pools/default/calendar/?from={at(0)}&to={at(5)}").body
    assert [row["index"] for row in shown["gpus"]] == [0, 1]
    busy = shown["gpus"][0]
    assert [(item["from"], item["core"], item["memory_mib"]) for item in busy["intervals"]] == [
        (at(0), 0, 0),
        (at(1), 50, 1000),
        (at(2), 80, 1500),
        (at(3), 30, 500),
        (at(4), 0, 0),
    ]
    assert [(item["kind"], item["name"], item["tenant"]) for item in busy["holds"]] == [
        ("reservation", "exam", "acme")
    ] * 2
    assert platform.vera.get("pools/default/calendar/?node=nowhere").code == "not-found"
    assert platform.vera.get(f"pools/default/calendar/?from={at(0)}&to={at(24 * 100)}").code == "period-invalid"


def test_what_pods_use_without_a_claim_is_in_the_way_and_in_the_calendar(platform: Cast, machine: Machine) -> None:
    Gpu.objects.filter(pk=machine.gpu().pk).update(core_outside=130, memory_outside_mib=GIB)
    refused = book(platform.max, gpu_count=2)
    assert (refused.status, refused.code, refused.body["windows"]) == (409, "window-taken", [])
    [conflict] = refused.body["conflicts"]
    assert (conflict["kind"], conflict["uid"], conflict["until"], conflict["gpus"]) == ("outside", None, None, 1)
    assert conflict["detail"] == "Used by pods without a claim, without an end"
    assert [gpu["index"] for gpu in book(platform.max).body["gpus"]] == [1]
    rows = platform.max.get(f"pools/default/calendar/?from={at(0)}&to={at(4)}").body["gpus"]
    [hold] = rows[0]["holds"]
    assert (hold["kind"], hold["core"], hold["memory_mib"], hold["end_at"]) == ("outside", 130, GIB, None)
    assert (rows[0]["intervals"][0]["core"], [one["kind"] for one in rows[1]["holds"]]) == (130, ["reservation"])
    [box] = rows_of(rows[:1], datetime.fromisoformat(at(0)))[0].boxes
    assert (box.top, box.height, box.title) == (0, 100, "pods without a claim, 130 % without an end")


def test_a_moment_without_an_offset_is_read_as_utc(platform: Cast, machine: Machine) -> None:
    made = book(platform.max, start_at="2026-06-15T14:00:00")
    assert datetime.fromisoformat(made.body["start_at"]) == START + 2 * HOUR
