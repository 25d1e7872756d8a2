"""Requests for a budget: the effect of a grant and of its end on the budget, previews, and races."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from apps.quotas import tasks
from apps.quotas.models import AuditEvent, Budget, QuotaRequest, ResourceQuota
from apps.quotas.principals import SYSTEM
from apps.quotas.services.budgets import create_budget
from tests.cast import Api, Cast, Machine, ask, give, placed
from tests.racing import race
from tests.scheduling.clock import Clock
from tests.scheduling.routes import dump_database
from tests.scheduling.test_requests import MORE, actions, hard, make_request


@pytest.fixture
def quota(clock: Clock, cast: Cast) -> ResourceQuota:
    return give(cast.acme, core_percent=100, memory_mib=None)["core_percent"]


HOURS: dict[str, Any] = {**MORE, "resource": "gpu_hours", "period": "month", "amount": 100}


def budget_hours(cast: Cast, period: str = "month") -> str | None:
    found = Budget.objects.filter(tenant=cast.acme, period=period).values_list("gpu_hours", flat=True).first()
    return None if found is None else f"{found:f}"


def test_a_tenant_without_a_budget_asks_for_its_first_one(cast: Cast, quota: ResourceQuota) -> None:
    path = make_request(cast, **HOURS)
    shown = cast.anna.get(path).body
    assert (shown["resource"], shown["period"], shown["amount"], shown["created_by"][:9]) == (
        "gpu_hours", "month", 100, "user:anna",
    )  # fmt: skip
    assert budget_hours(cast) is None
    assert cast.olga.post(path + "approve/").body["granted_amount"] == 100
    assert budget_hours(cast) == "100.000"
    assert (hard(quota), actions()) == (100, ["create", "approve"])
    event = AuditEvent.objects.get(action="quota-request.approve")
    assert event.after is not None
    assert (event.after["period"], event.after["gpu_hours"]) == ("month", "100")
    assert AuditEvent.objects.filter(action="budget.create").count() == 1
    (row,) = cast.anna.get("quota-requests/?resource=gpu_hours&period=month").body["results"]
    assert row["state"] == "approved"
    assert cast.anna.get("quota-requests/?period=week").body["results"] == []


def test_a_budget_is_raised_by_what_was_offered_and_falls_back_on_its_date(
    cast: Cast, quota: ResourceQuota, clock: Clock
) -> None:
    create_budget(principal=SYSTEM, tenant=cast.acme, period="month", gpu_hours=Decimal("10.5"))
    create_budget(principal=SYSTEM, tenant=cast.acme, period="week", gpu_hours=Decimal(7))
    path = make_request(cast, **HOURS)
    until = (clock.now + timedelta(days=1)).isoformat()
    assert cast.olga.post(path + "counter/", {"amount": 50, "until": until}).status == 200
    assert budget_hours(cast) == "10.500"
    assert cast.max.post(path + "accept/", If_Match="*").code == "role-missing"
    assert cast.anna.post(path + "accept/", If_Match="*").body["granted_amount"] == 50
    assert (budget_hours(cast), budget_hours(cast, "week")) == ("60.500", "7.000")
    clock.advance(days=2)
    assert [tasks.lapse_requests(), tasks.lapse_requests()] == [1, 0]
    assert (budget_hours(cast), budget_hours(cast, "week")) == ("10.500", "7.000")
    assert cast.anna.get(path).body["state"] == "lapsed"


def test_a_lapse_of_a_budget_takes_nothing_from_one_that_was_made_since(
    cast: Cast, quota: ResourceQuota, clock: Clock
) -> None:
    budget = create_budget(principal=SYSTEM, tenant=cast.acme, period="month", gpu_hours=Decimal(10))
    for made_since in (False, True):
        path = make_request(cast, **HOURS, until=(clock.now + timedelta(days=1)).isoformat())
        assert cast.olga.post(path + "approve/").status == 200
        budget.delete()
        clock.advance(hours=1)
        if made_since:
            create_budget(principal=SYSTEM, tenant=cast.acme, period="month", gpu_hours=Decimal(30))
        clock.advance(days=2)
        assert tasks.lapse_requests() == 1
        assert budget_hours(cast) == ("30.000" if made_since else None)
        budget = Budget.objects.filter(tenant=cast.acme).first() or create_budget(
            principal=SYSTEM, tenant=cast.acme, period="month", gpu_hours=Decimal(10)
        )


def test_the_preview_of_a_budget_shows_its_hours_and_what_could_start(
    cast: Cast, quota: ResourceQuota, clock: Clock
) -> None:
    create_budget(principal=SYSTEM, tenant=cast.acme, period="month", gpu_hours=Decimal(1))
    placed(cast, Machine("gpu1", cast.pool), core_request=50)
    ask(cast, name="next", core_request=40)
    clock.advance(hours=3)
    path = make_request(cast, **HOURS)
    before = dump_database()
    shown = cast.olga.get(path).body["preview"]
    assert (shown["quota"], shown["budget"]["gpu_hours"], shown["over"]) == (None, "101.000", [])
    assert shown["budget"]["current"]["gpu_hours_spent"] == "1.500000"
    assert [(row["name"], row["changed"]) for row in shown["runnable"]] == [("next", True)]
    assert cast.olga.post(path + "approve/?dry_run=true").body == shown
    assert cast.anna.get(path).body["preview"] is None
    assert dump_database() == before


@pytest.mark.parametrize(
    ("facts", "field"),
    [
        ({"period": None}, "period"),
        ({"period": "custom"}, "period"),
        ({"pool": "default"}, "pool"),
        ({"resource": "core_percent"}, "period"),
    ],
)
def test_the_fields_of_a_budget_belong_together(
    cast: Cast, quota: ResourceQuota, facts: dict[str, Any], field: str
) -> None:
    assert list(cast.anna.post("quota-requests/", {**HOURS, **facts}).body["errors"]) == [field]
    assert not QuotaRequest.objects.exists()


def test_a_first_budget_has_no_end_and_no_budget_is_larger_than_a_fleet(
    cast: Cast, quota: ResourceQuota, clock: Clock
) -> None:
    until = (clock.now + timedelta(days=1)).isoformat()
    assert cast.anna.post("quota-requests/", {**HOURS, "until": until}).code == "not-limited"
    assert cast.anna.post("quota-requests/", {**HOURS, "amount": 10**9 + 1}).code == "budget-too-large"
    path = make_request(cast, **HOURS)
    assert cast.olga.post(path + "counter/", {"amount": 5, "until": until}).code == "not-limited"
    assert cast.olga.post(path + "counter/", {"amount": 10**12}).code == "budget-too-large"
    create_budget(principal=SYSTEM, tenant=cast.acme, period="month", gpu_hours=Decimal(10**9))
    answer = cast.olga.post(path + "approve/")
    assert (answer.status, answer.code) == (422, "budget-too-large")
    assert cast.olga.get(path).body["preview"] is None
    for who in (cast.max, cast.vera):
        assert who.post("quota-requests/", HOURS).code == "role-missing"


@pytest.mark.django_db(transaction=True)
def test_requests_for_one_budget_that_are_approved_at_once_add_up(real_cast: Cast) -> None:
    paths = [make_request(real_cast, **HOURS) for _ in range(8)]
    approve = [lambda path=path: Api(real_cast.olga.token).post(path + "approve/").status for path in paths]
    answers = race([*approve])
    assert answers == [200] * 8
    assert budget_hours(real_cast) == "800.000"
