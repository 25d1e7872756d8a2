"""The queue in a claim's document and in the pool's list: position, estimate, and a size that would fit."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from apps.quotas.principals import SYSTEM
from apps.quotas.services import tenants
from apps.reservations.lifecycle import create_reservation
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.cycles import queue
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import GIB, Cast, Machine, ask, everything, give, give_plenty, placed, uids


@pytest.fixture
def machine(cast: Cast) -> Machine:
    """Create one GPU of 24 GiB, and no limiting quota."""
    give_plenty(cast.acme, cast.globex)
    return Machine("gpu1", cast.pool, gpus=1)


def refusals(cast: Cast, **asked: Any) -> Claim:
    claim = ask(cast, **asked)
    run_round(cast.pool)
    claim.refresh_from_db()
    assert claim.state == "queued"
    return claim


def document(cast: Cast, claim: Claim) -> dict[str, Any]:
    body: dict[str, Any] = cast.max.get(f"claims/{claim.uid}/").body
    return body


def test_a_placed_claim_has_no_place_in_the_queue(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine)
    body = document(cast, claim)
    assert body["suggestions"] == []
    assert [body[name] for name in ("queue_position", "queue_length", "estimate")] == [None, None, None]


def test_places_are_counted_by_priority_and_by_who_has_least(cast: Cast, machine: Machine) -> None:
    placed(cast, machine, core_request=60)
    mine, urgent = refusals(cast, core_request=80), refusals(cast, core_request=80, priority=1)
    theirs = refusals(cast, core_request=80, tenant=cast.globex)
    rows = list(everything(cast.olga, "/api/v1/pools/default/queue/?limit=2"))
    assert [(row["position"], row["claim"]) for row in rows] == list(enumerate(uids([urgent, theirs, mine]), start=1))
    assert [document(cast, claim)["queue_position"] for claim in (mine, urgent)] == [3, 1]
    assert document(cast, mine)["queue_length"] == 3


def test_a_member_sees_its_own_with_their_places_among_all(cast: Cast, machine: Machine) -> None:
    placed(cast, machine, core_request=60)
    mine, _ = refusals(cast, core_request=80), refusals(cast, core_request=80, priority=1, tenant=cast.globex)
    rows = cast.vera.get("pools/default/queue/").body["results"]
    assert [(row["claim"], row["position"]) for row in rows] == [(str(mine.uid), 2)]
    assert cast.olga.get("pools/default/queue/?tenant=acme").body["results"] == rows


def test_an_estimate_comes_from_the_time_limits_of_what_runs(cast: Cast, machine: Machine) -> None:
    runs, _ = placed(cast, machine, core_request=60, time_limit_seconds=600)
    waits = refusals(cast, core_request=80, time_limit_seconds=60)
    behind = refusals(cast, core_request=90)
    assert runs.assigned_at is not None
    first, second = document(cast, waits), document(cast, behind)
    assert first["estimate"]["basis"] == second["estimate"]["basis"] == "time-limits"
    assert first["estimated_start_at"] == first["estimate"]["at"]
    assert moment(first["estimate"]["at"]) == pytest.approx(runs.assigned_at.timestamp() + 600, abs=0.01)
    assert moment(second["estimate"]["at"]) == pytest.approx(runs.assigned_at.timestamp() + 660, abs=0.01)
    assert "1 claim ahead in the queue" in second["estimate"]["detail"]


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_else_from_how_often_as_much_was_given_back_lately(cast: Cast, machine: Machine) -> None:
    type(cast.pool).objects.update(created_at=timezone.now() - timedelta(days=7))
    for _ in range(4):
        done, _ = placed(cast, machine, core_request=80)
        release_claim(principal=SYSTEM, claim=done)
        machine.obey()
    placed(cast, machine, core_request=60)
    estimate = document(cast, refusals(cast, core_request=80))["estimate"]
    assert estimate["basis"] == "recent-rate"
    assert moment(estimate["at"]) == pytest.approx(timezone.now().timestamp() + 6 * 3600, abs=60)
    assert "In the last 24 hours 4 claims of at least this size ended" in estimate["detail"]


def test_else_there_is_none_and_it_is_said_why(cast: Cast, machine: Machine) -> None:
    placed(cast, machine, core_request=60)
    body = document(cast, refusals(cast, core_request=80))
    assert (body["estimated_start_at"], body["estimate"]["basis"]) == (None, "none")
    assert "Start time unknown" in body["estimate"]["detail"]


def test_who_waits_for_quota_gets_no_estimate_and_a_suggestion_within_it(cast: Cast) -> None:
    give(cast.acme, core_percent=10, memory_mib=None)
    Machine("gpu1", cast.pool)
    body = document(cast, refusals(cast, core_request=30, when_over_quota="wait"))
    assert body["estimate"]["detail"] == "Waiting for tenant quota; no estimate"
    assert [(item["name"], item["value"]) for item in body["suggestions"]] == [("core_request", 10)]


def test_the_nearest_changes_that_would_fit_are_told(cast: Cast, machine: Machine) -> None:
    placed(cast, machine, core_request=60, memory_mib=4 * GIB)
    other = tenants.create_pool(principal=SYSTEM, name="other")
    Machine("gpu2", other, gpus=1)
    body = document(cast, refusals(cast, core_request=80, memory_mib=20 * GIB))
    assert [(item["name"], item["value"]) for item in body["suggestions"]] == [("core_request", 40), ("pool", "other")]
    assert body["suggestions"][0]["detail"] == "Reduce core request to 40 % to start now"


def test_nothing_is_suggested_that_the_head_of_the_queue_needs(cast: Cast, machine: Machine) -> None:
    placed(cast, machine, core_request=60, memory_mib=4 * GIB, time_limit_seconds=600)
    refusals(cast, core_request=80, memory_mib=4 * GIB)
    behind = document(cast, refusals(cast, core_request=60, memory_mib=4 * GIB))
    # Forty are free; twenty of them are the head's when the sixty are released.
    assert [(item["name"], item["value"]) for item in behind["suggestions"]] == [("core_request", 20)]


def test_a_wait_says_nothing_of_the_place(cast: Cast, machine: Machine) -> None:
    """It reads the claim every second, and answers as a POST does."""
    posted = cast.max.post("claims/", {"tenant": "acme", "core_request": 10, "memory_mib": 100}).body
    assert "queue_position" not in posted
    assert posted["estimated_start_at"] is None


def test_a_large_pool_is_not_read_for_every_question(
    cast: Cast, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed(cast, machine, core_request=60)
    first, second = refusals(cast, core_request=80), refusals(cast, core_request=80)
    monkeypatch.setattr(queue, "LARGE", 0)
    monkeypatch.setattr(queue, "_snapshots", {})
    assert document(cast, first)["queue_position"] == 1
    with CaptureQueriesContext(connection) as asked:
        assert document(cast, second)["queue_position"] == 2
    assert not [query for query in asked if 'ORDER BY "nodes_node"."name"' in query["sql"]]


def test_a_claim_that_came_after_the_queue_was_read_is_told_to_look_again(
    cast: Cast, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed(cast, machine, core_request=60)
    monkeypatch.setattr(queue, "LARGE", 0)
    monkeypatch.setattr(queue, "_snapshots", {})
    document(cast, refusals(cast, core_request=80))
    body = document(cast, refusals(cast, core_request=80))
    assert (body["queue_position"], body["estimate"]["basis"]) == (None, "none")
    assert len(cast.olga.get("pools/default/queue/").body["results"]) == 1


def test_one_claims_document_asks_the_database_as_often_in_a_long_queue(cast: Cast, machine: Machine) -> None:
    placed(cast, machine, core_request=60, time_limit_seconds=600)
    claim = refusals(cast, core_request=80)

    def count() -> int:
        with CaptureQueriesContext(connection) as asked:
            document(cast, claim)
        return len(asked)

    count()
    few = count()
    for _ in range(5):
        refusals(cast, core_request=80)
    assert count() == few <= 14


@pytest.mark.parametrize("cursor", ["x", "-1", "9" * 30])
def test_a_cursor_that_is_none_is_not_found(cast: Cast, machine: Machine, cursor: str) -> None:
    assert cast.max.get(f"pools/default/queue/?cursor={cursor}").status == 404


def test_an_estimate_knows_what_is_reserved(cast: Cast, machine: Machine) -> None:
    begin = timezone.now() + timedelta(hours=1)
    window: dict[str, Any] = {"start_at": begin, "end_at": begin + timedelta(hours=2)}
    asked: dict[str, Any] = {"name": "exam", "core_request": 100, "memory_mib": GIB}
    create_reservation(principal=SYSTEM, tenant=cast.globex, pool=cast.pool, **window, **asked)
    waits = refusals(cast, core_request=80)
    gang = [ask(cast, core_request=10, time_limit_seconds=7200, group="ring", group_size=2) for _ in range(2)]
    run_round(cast.pool)
    for claim in (waits, *gang):
        estimate = document(cast, claim)["estimate"]
        assert estimate["basis"] == "time-limits"
        assert moment(estimate["at"]) == pytest.approx(window["end_at"].timestamp(), abs=0.01)
