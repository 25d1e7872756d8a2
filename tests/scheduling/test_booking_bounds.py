"""Bounds of a booking, the answer of its preview, and the queries of a series."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.quotas.principals import SYSTEM
from apps.quotas.services.limit_ranges import create_range
from apps.scheduling.models import Reservation
from tests.cast import GIB, Answer, Cast, Machine, give, give_plenty
from tests.scheduling.clock import START, Clock


@pytest.fixture
def stage(clock: Clock, cast: Cast) -> Cast:
    give_plenty(cast.acme)
    Machine("gpu1", cast.pool, gpus=2)
    return cast


def at(hours: float) -> str:
    return (START + timedelta(hours=hours)).isoformat().replace("+00:00", "Z")


def book(stage: Cast, start: float = 1, end: float = 3, *, query: str = "", **asked: Any) -> Answer:
    asked = {"core_request": 50, "memory_mib": 8 * GIB, **asked}
    asked = {name: value for name, value in asked.items() if value is not None}
    body = {"tenant": "acme", "name": "exam", "start_at": at(start), "end_at": at(end), **asked}
    return stage.max.post(f"reservations/{query}", body)


@pytest.mark.parametrize(
    ("field", "bounds", "asked"),
    [
        ("core_request", {"maximum": 40}, {}),
        ("core_request", {"minimum": 60}, {}),
        ("memory_mib", {"maximum": GIB}, {}),
        ("gpu_count", {"maximum": 1}, {"gpu_count": 2}),
        ("time_limit_seconds", {"maximum": 3600}, {}),
    ],
)
def test_what_bounds_a_claim_bounds_a_reservation(
    stage: Cast, field: str, bounds: dict[str, int], asked: dict[str, int]
) -> None:
    create_range(principal=SYSTEM, tenant=stage.acme, pool=None, field=field, **bounds)
    for query in ("", "?dry_run=true"):
        refused = book(stage, query=query, **asked)
        assert (refused.status, refused.code, refused.body["field"]) == (422, "out-of-range", field)
    assert not Reservation.objects.exists()


def test_a_longer_window_is_bounded_too(stage: Cast) -> None:
    create_range(principal=SYSTEM, tenant=stage.acme, pool=None, field="time_limit_seconds", maximum=7200)
    uid = book(stage).body["uid"]
    assert stage.max.patch(f"reservations/{uid}/", {"end_at": at(2)}).status == 200
    assert stage.max.patch(f"reservations/{uid}/", {"end_at": at(4)}).code == "out-of-range"


def test_a_tenants_defaults_are_a_reservations_too(stage: Cast) -> None:
    assert book(stage, core_request=None).code == "field-missing"
    create_range(principal=SYSTEM, tenant=stage.acme, pool=None, field="core_request", default=25)
    made = book(stage, core_request=None)
    assert (made.status, made.body["core_request"], made.body["gpu_count"]) == (201, 25, 1)


@pytest.mark.parametrize("asked", [{"gpu_count": 3}, {"memory_mib": 900 * GIB}, {"gpu_model": "NVIDIA nothing"}])
def test_what_no_machine_could_ever_carry_is_not_a_matter_of_time(stage: Cast, asked: dict[str, Any]) -> None:
    for query in ("", "?dry_run=true"):
        refused = book(stage, query=query, **asked)
        assert (refused.status, refused.code) == (422, "impossible-reservation")
        assert refused.body["reasons"]


def test_a_question_is_answered_in_words_too(stage: Cast) -> None:
    assert book(stage, query="?dry_run=true").body["detail"] == "It would be booked."
    assert book(stage, core_request=100, gpu_count=2).status == 201
    asked = book(stage, query="?dry_run=true").body
    assert (asked["fits"], asked["detail"]) == (False, book(stage).body["detail"])
    series = book(stage, 200, 202, query="?dry_run=true", weekly_until=at(700)).body
    assert (series["fits"], series["detail"]) == (True, "All 3 windows would be booked.")
    again = book(stage, 1, 3, query="?dry_run=true", weekly_until=at(400)).body
    assert again["detail"].startswith("From 2026-06-15 13:00:00 UTC: In this window")


def test_a_question_about_the_quota_says_its_numbers(clock: Clock, cast: Cast) -> None:
    give(cast.acme, core_percent=40, memory_mib=None)
    Machine("gpu1", cast.pool, gpus=2)
    asked = book(cast, query="?dry_run=true").body
    assert "Core quota exceeded: requested 50 %, 40 % of 40 % available" in asked["detail"]


def test_the_calendar_knows_its_nodes(stage: Cast) -> None:
    assert stage.max.get("pools/default/calendar/?node=gpu1").status == 200
    missing = stage.max.get("pools/default/calendar/?node=gpu9")
    assert (missing.status, missing.body["detail"]) == (404, "Pool default has no node gpu9.")


def test_a_long_series_reads_the_pool_as_often_as_a_short_one(stage: Cast) -> None:
    def reads(weeks: int) -> int:
        with CaptureQueriesContext(connection) as asked:
            assert book(stage, core_request=1, weekly_until=at(168 * weeks)).status == 201
        # The contents of its GPUs are read together with them.
        return sum("scheduling_assignment" in query["sql"] for query in asked)

    assert reads(20) == reads(2)
