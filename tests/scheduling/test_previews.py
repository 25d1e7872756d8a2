"""Previews of changed quotas: they predict the result, and change nothing."""

import random
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from apps.quotas.models import ResourceQuota, User
from apps.quotas.principals import SYSTEM
from apps.quotas.services import tenants
from apps.quotas.services.budgets import create_budget
from apps.quotas.services.member_limits import create_limit
from apps.reservations.lifecycle import create_reservation
from apps.scheduling.models import Claim
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import GIB, Cast, Machine, ask, assert_books_agree, give, give_plenty, placed, uids
from tests.matrix import seeds
from tests.scheduling.routes import dump_database


@pytest.fixture
def machine(cast: Cast) -> Machine:
    return Machine("gpu1", cast.pool)


def preview(cast: Cast, quota: ResourceQuota, **values: Any) -> dict[str, Any]:
    before = dump_database()
    answer = cast.olga.patch(f"quotas/{quota.pk}/?dry_run=true", values, If_Match="*")
    assert answer.status == 200, answer.body
    assert dump_database() == before
    body: dict[str, Any] = answer.body
    return body


def names(rows: list[dict[str, Any]]) -> list[tuple[str, bool]]:
    return [(row["name"], row["changed"]) for row in rows]


def waiting(cast: Cast, name: str, **asked: Any) -> Claim:
    return ask(cast, name=name, when_over_quota="wait", **asked)


def test_a_raised_quota_says_which_waiting_claims_could_start(cast: Cast, machine: Machine) -> None:
    quota = give(cast.acme, core_percent=30, memory_mib=None)["core_percent"]
    placed(cast, machine, core_request=30)
    waiting(cast, "small", core_request=20)
    waiting(cast, "large", core_request=90)
    body = preview(cast, quota, hard=60)
    assert (body["dry_run"], body["quota"]["hard"], body["over"]) == (True, 60, [])
    assert names(body["runnable"]) == [("small", True)]
    assert names(body["pending"]) == [("large", False)]
    assert body["pending"][0]["reasons"][0]["code"] == "quota-exceeded"
    assert "10 % of 60 % available" in body["pending"][0]["reasons"][0]["detail"]


def test_a_long_queue_costs_a_preview_no_more_queries_than_a_short_one(cast: Cast, machine: Machine) -> None:
    quota = give(cast.acme, core_percent=30, memory_mib=None)["core_percent"]
    waiting(cast, "first")
    with CaptureQueriesContext(connection) as short:
        preview(cast, quota, hard=60)
    for _ in range(5):
        waiting(cast, "another")
    with CaptureQueriesContext(connection) as long:
        preview(cast, quota, hard=60)
    assert len(long) <= len(short)


def test_a_lowered_quota_says_who_would_be_over_and_which_claims_could_no_longer_start(
    cast: Cast, machine: Machine
) -> None:
    quota = give(cast.acme, core_percent=100, memory_mib=None)["core_percent"]
    placed(cast, machine, core_request=60)
    large = waiting(cast, "large", core_request=50)
    small = waiting(cast, "small", core_request=30)
    assert [claim.charged_core_percent for claim in (large, small)] == [0, 30]
    machine.node.change(cordoned=True)
    body = preview(cast, quota, hard=40)
    assert body["over"] == [
        {"tenant": "acme", "pool": None, "resource": "core_percent", "hard": 40, "used": 90, "borrowed": 50,
         "excess": 50},
    ]  # fmt: skip
    # Claims that are charged already stay charged, and wait for the GPU only.
    assert [(row["name"], row["reasons"][0]["code"]) for row in body["pending"]] == [
        ("large", "node-unavailable"),
        ("small", "node-unavailable"),
    ]
    machine.node.change(cordoned=False)
    assert names(preview(cast, quota, hard=40)["runnable"]) == [("small", False)]


def test_a_claim_that_could_start_now_and_not_after_is_told(cast: Cast, machine: Machine) -> None:
    quota = give(cast.acme, core_percent=10, memory_mib=None)["core_percent"]
    waiting(cast, "x", core_request=50)
    ResourceQuota.objects.filter(pk=quota.pk).update(hard=100)
    quota.refresh_from_db()
    assert names(preview(cast, quota, hard=100)["runnable"]) == [("x", False)]
    assert names(preview(cast, quota, hard=40)["pending"]) == [("x", True)]


def test_a_quota_that_would_be_made_counts_what_is_held(cast: Cast, machine: Machine) -> None:
    give_plenty(cast.acme)
    placed(cast, machine, core_request=30)
    before = dump_database()
    body = {"tenant": "acme", "pool": "default", "resource": "core_percent", "hard": 10}
    answer = cast.olga.post("quotas/?dry_run=true", body)
    assert (answer.status, answer.body["quota"]["used"]) == (200, 30)
    assert [(row["pool"], row["excess"]) for row in answer.body["over"]] == [("default", 20)]
    assert dump_database() == before


def test_a_removed_quota_says_what_could_no_longer_start(cast: Cast, machine: Machine) -> None:
    quota = give(cast.acme, core_percent=50, memory_mib=None)["core_percent"]
    first = waiting(cast, "held", core_request=50)
    waiting(cast, "next", core_request=20)
    assert cast.olga.delete(f"quotas/{quota.pk}/?dry_run=true", If_Match="*").code == "in-use"
    cast.max.delete(f"claims/{first.uid}/")
    before = dump_database()
    answer = cast.olga.delete(f"quotas/{quota.pk}/?dry_run=true", If_Match="*")
    assert (answer.status, answer.body["quota"]) == (200, None)
    assert names(answer.body["pending"]) == [("next", True)]
    assert dump_database() == before


def test_a_preview_is_refused_as_the_act_would_be(cast: Cast) -> None:
    quota = give(cast.acme, core_percent=50)["core_percent"]
    path = f"quotas/{quota.pk}/?dry_run=true"
    assert cast.olga.patch(path, {"hard": 1}).code == "version-required"
    assert cast.olga.patch(path, {"hard": 1}, If_Match='"9"').code == "stale-version"
    assert cast.anna.patch(path, {"hard": 1}, If_Match="*").code == "role-missing"
    assert cast.gus.patch(path, {"hard": 1}, If_Match="*").code == "not-found"
    assert cast.olga.patch(f"quotas/{quota.pk}/?dry_run=maybe", {"hard": 1}, If_Match="*").code == "invalid-fields"


def test_a_lender_that_is_lowered_shows_who_borrows(cast: Cast, machine: Machine) -> None:
    for tenant in (cast.acme, cast.globex):
        tenants.change_tenant(principal=SYSTEM, tenant=tenant, cohort="all")
    give(cast.acme, core_percent=20, memory_mib=None)
    lender = give(cast.globex, core_percent=80, memory_mib=None)["core_percent"]
    placed(cast, machine, core_request=90)
    body = preview(cast, lender, hard=50)
    assert [(row["tenant"], row["borrowed"], row["excess"]) for row in body["over"]] == [("acme", 70, 20)]


def test_a_raised_quota_of_another_in_the_cohort_lets_a_claim_start(cast: Cast, machine: Machine) -> None:
    for tenant in (cast.acme, cast.globex):
        tenants.change_tenant(principal=SYSTEM, tenant=tenant, cohort="all")
    give(cast.acme, core_percent=20, memory_mib=None)
    lender = give(cast.globex, core_percent=0, memory_mib=None)["core_percent"]
    waiting(cast, "x", core_request=50)
    body = preview(cast, lender, hard=30)
    assert names(body["runnable"]) == [("x", True)]
    assert body["over"] == []


def test_a_spent_budget_keeps_claims_waiting_whatever_the_quota(cast: Cast, machine: Machine) -> None:
    quota = give(cast.acme, core_percent=10, memory_mib=None)["core_percent"]
    waiting(cast, "x", core_request=50)
    create_budget(principal=SYSTEM, tenant=cast.acme, period="month", gpu_hours=0)  # type: ignore[arg-type]
    body = preview(cast, quota, hard=100)
    assert [row["reasons"][0]["code"] for row in body["pending"]] == ["budget-exceeded"]


def test_a_members_own_limit_keeps_a_claim_waiting_whatever_the_quota(cast: Cast, machine: Machine) -> None:
    quota = give(cast.acme, core_percent=10, memory_mib=None)["core_percent"]
    user = User.objects.get(username="max")
    create_limit(principal=SYSTEM, tenant=cast.acme, user=user, resource="core_percent", hard=60)
    for name in ("first", "second"):
        waiting(cast, name, core_request=40, principal=cast.member)
    body = preview(cast, quota, hard=100)
    assert names(body["runnable"]) == [("first", True)]
    assert [row["reasons"][0]["code"] for row in body["pending"]] == ["member-limit-exceeded"]


@pytest.mark.parametrize("seed", seeds(6))
def test_what_a_preview_says_of_the_queue_is_what_a_round_does_after_the_change(cast: Cast, seed: int) -> None:
    Machine("gpu1", cast.pool, gpus=1 + seed % 3).stay_online()
    random_ = random.Random(seed)  # noqa: S311
    if seed % 2:
        for tenant in (cast.acme, cast.globex):
            tenants.change_tenant(principal=SYSTEM, tenant=tenant, cohort="all")
    rows: list[ResourceQuota] = []
    for tenant in (cast.acme, cast.globex) if seed % 2 else (cast.acme,):
        rows += give(tenant, core_percent=random_.randrange(0, 200), memory_mib=40 * GIB).values()
        rows += give(tenant, pool=cast.pool, core_percent=random_.randrange(50, 300), vgpus=4).values()
    for number in range(12):
        tenant = random_.choice([cast.acme, cast.globex]) if seed % 2 else cast.acme
        facts = {"core_request": random_.randrange(1, 101), "memory_mib": random_.randrange(1, 16 * GIB)}
        waiting(cast, str(number), tenant=tenant, priority=random_.randrange(3), **facts)
    quota = random_.choice([row for row in rows if row.resource == "core_percent"])
    body = preview(cast, quota, hard=400)
    assert body["runnable"]
    assert body["pending"]
    answer = cast.olga.patch(f"quotas/{quota.pk}/", {"hard": 400}, If_Match="*")
    assert answer.status == 200
    run_round(cast.pool)
    started = uids(Claim.objects.filter(state="assigned").order_by("-priority", "pk"))
    assert [row["claim"] for row in body["runnable"]] == started
    assert_books_agree()


def test_a_group_starts_as_a_whole_or_not_at_all(cast: Cast, machine: Machine) -> None:
    quota = give(cast.acme, core_percent=1, memory_mib=None)["core_percent"]
    for name in ("one", "two"):
        waiting(cast, name, core_request=40, group="ring", group_size=2)
    waiting(cast, "alone", core_request=30)
    body = preview(cast, quota, hard=60)
    assert names(body["runnable"]) == [("alone", True)]
    assert [row["reasons"][0]["code"] for row in body["pending"]] == ["quota-exceeded"] * 2
    assert len(preview(cast, quota, hard=110)["runnable"]) == 3


def test_a_claim_whose_time_has_not_come_starts_by_no_quota(cast: Cast, machine: Machine) -> None:
    quota = give(cast.acme, core_percent=1, memory_mib=None)["core_percent"]
    waiting(cast, "later", start_at=timezone.now() + timedelta(hours=1))
    waiting(cast, "half", group="ring", group_size=2)
    body = preview(cast, quota, hard=200)
    assert body["runnable"] == []
    assert [row["reasons"][0]["code"] for row in body["pending"]] == ["not-before", "group-incomplete"]


def test_what_is_reserved_is_not_counted_on(cast: Cast) -> None:
    Machine("gpu1", cast.pool, gpus=1)
    give_plenty(cast.globex)
    quota = give(cast.acme, core_percent=1, memory_mib=None)["core_percent"]
    begin = timezone.now() + timedelta(hours=1)
    window: dict[str, Any] = {"start_at": begin, "end_at": begin + timedelta(hours=1)}
    asked: dict[str, Any] = {"name": "exam", "core_request": 100, "memory_mib": GIB}
    create_reservation(principal=SYSTEM, tenant=cast.globex, pool=cast.pool, **window, **asked)
    waiting(cast, "endless")
    waiting(cast, "short", time_limit_seconds=60)
    body = preview(cast, quota, hard=200)
    assert names(body["runnable"]) == [("short", True)]
    assert names(body["pending"]) == [("endless", False)]
