"""Events sent to webhooks by the services, each in the transaction of its fact."""

import json
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.utils import timezone

from apps.nodes.models import Node
from apps.quotas.models import EventKind, WebhookDelivery
from apps.quotas.principals import SYSTEM
from apps.quotas.services import budgets, quotas, requests
from apps.quotas.services.webhooks import hooks
from apps.reservations import clock as reservations_clock
from apps.reservations.lifecycle import create_reservation, release_reservation
from apps.scheduling.models import Claim
from apps.scheduling.services.charging.budgets import watch_budgets
from apps.scheduling.services.claims.absences import watch_nodes
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.reclaiming import preemption
from apps.scheduling.services.reclaiming.forgetting import forget_node
from tests.cast import GIB, Cast, Machine, ask, give, give_plenty, lose, placed, seen
from tests.scheduling.clock import Clock
from tests.scheduling.test_preemption import build


@pytest.fixture
def listening(cast: Cast) -> Cast:
    """Subscribe acme, globex and the platform to everything."""
    for tenant in (cast.acme, cast.globex, None):
        hooks.create(principal=SYSTEM, tenant=tenant, url="https://hooks.example.org/", events=EventKind.values)
    return cast


def event_types(tenant: str | None) -> list[str]:
    """Return the types of a webhook's deliveries, in order."""
    rows = WebhookDelivery.objects.filter(webhook__tenant__slug=tenant) if tenant else platforms()
    return list(rows.order_by("pk").values_list("kind", flat=True))


def platforms() -> Any:
    return WebhookDelivery.objects.filter(webhook__tenant=None)


def last(kind: str, tenant: str = "acme") -> dict[str, Any]:
    row = WebhookDelivery.objects.filter(webhook__tenant__slug=tenant, kind=kind).latest("pk")
    body: dict[str, Any] = json.loads(row.body)
    assert body["type"] == kind
    data: dict[str, Any] = body["data"]
    return data


def test_a_claims_life_is_told_to_its_tenant_and_the_platform(listening: Cast) -> None:
    give_plenty(listening.acme)
    machine = Machine("gpu1", listening.pool)
    claim, _ = placed(listening, machine)
    assert last("claim.active")["claim"] == {
        "pool": "default", "uid": str(claim.uid), "name": "train", "state": "active", "gpu_count": 1,
        "core_request": 30, "memory_mib": 8 * GIB, "priority": 0, "suspended_by": "",
    }  # fmt: skip
    release_claim(principal=SYSTEM, claim=claim)
    machine.obey()
    assert event_types("acme") == event_types(None) == ["claim.active", "claim.released"]
    assert event_types("globex") == []


def test_what_an_agent_cannot_do_is_told(listening: Cast) -> None:
    give_plenty(listening.acme)
    machine = Machine("gpu1", listening.pool)
    _, assignment = placed(listening, machine)
    machine.say(seen(assignment, "failed", reason="no such library"))
    assert event_types("acme") == ["claim.active", "claim.failed"]


def test_a_victim_has_notice_and_is_told_what_became_of_it(cast: Cast) -> None:
    lab = build(cast)
    hooks.create(principal=SYSTEM, tenant=cast.globex, url="https://hooks.example.org/", events=EventKind.values)
    claim = lab.wants()
    preemption.drive()
    victim = Claim.objects.get(preempt_at__isnull=False)
    notice = last("claim.preemption_notice", "globex")
    assert (notice["claim"]["uid"], notice["at"]) == (
        str(victim.uid),
        victim.preempt_at and victim.preempt_at.isoformat(),
    )
    assert "cme" not in str(notice["why"])
    release_claim(principal=SYSTEM, claim=claim)
    preemption.drive()
    lab.wants()
    preemption.drive()
    lab.grace_is_over()
    preemption.drive()
    notices = ["claim.preemption_notice", "claim.preemption_spared", "claim.preemption_notice", "claim.preempted"]
    assert event_types("globex") == notices


def test_waiting_for_quota_is_told_and_a_refusal_is_not(listening: Cast) -> None:
    give(listening.acme, core_percent=10, memory_mib=None)
    answer = listening.max.post("claims/", {"tenant": "acme", "core_request": 30, "memory_mib": GIB})
    assert (answer.code, event_types("acme")) == ("quota-exceeded", [])
    claim = ask(listening, when_over_quota="wait")
    assert last("claim.over_quota")["claim"]["uid"] == str(claim.uid)


def test_a_quota_below_what_is_held_is_told_once(listening: Cast) -> None:
    quota = give(listening.acme, core_percent=100, memory_mib=None)["core_percent"]
    ask(listening)
    quotas.change_quota(principal=SYSTEM, quota=quota, hard=20)
    assert (last("quota.exceeded")["excess"], last("quota.exceeded")["used"]) == (10, 30)
    quotas.change_quota(principal=SYSTEM, quota=quota, hard=25)
    assert event_types("acme") == ["quota.exceeded"]


def test_each_threshold_of_a_budget_is_told_once(clock: Clock, listening: Cast) -> None:
    give_plenty(listening.acme)
    budgets.create_budget(principal=SYSTEM, tenant=listening.acme, period="month", gpu_hours=Decimal(10))
    placed(listening, Machine("gpu1", listening.pool), core_request=100)
    levels = []
    for _ in range(12):
        clock.advance(hours=1)
        watch_budgets()
        if rows := WebhookDelivery.objects.filter(kind="budget.threshold", webhook__tenant=listening.acme):
            levels = [json.loads(row.body)["data"]["threshold_percent"] for row in rows.order_by("pk")]
    assert levels == [80, 95, 100]


def test_a_reservation_is_told_when_it_begins_and_when_it_ends(clock: Clock, listening: Cast) -> None:
    give_plenty(listening.acme)
    Machine("gpu1", listening.pool)
    window = {"start_at": clock() + timedelta(hours=1), "end_at": clock() + timedelta(hours=2)}
    asked: dict[str, Any] = {"name": "exam", "core_request": 5, "memory_mib": 100, "pool": listening.pool, **window}
    row = create_reservation(principal=SYSTEM, tenant=listening.acme, **asked)[0]
    clock.advance(hours=1)
    reservations_clock.drive()
    assert last("reservation.began")["reservation"]["uid"] == str(row.uid)
    release_reservation(principal=SYSTEM, reservation=row)
    assert last("reservation.ended")["ending"] == "early"
    assert event_types("acme") == ["reservation.began", "reservation.ended"]


def test_a_lost_node_is_told_once_and_to_whom_it_concerns(listening: Cast) -> None:
    give_plenty(listening.acme)
    machine = Machine("gpu1", listening.pool)
    claim, _ = placed(listening, machine)
    WebhookDelivery.objects.all().delete()
    assert watch_nodes() == 0
    lose(machine)
    assert [watch_nodes(), watch_nodes()] == [1, 0]
    assert last("node.lost")["claims"] == [str(claim.uid)]
    assert json.loads(platforms().get(kind="node.lost").body)["data"]["claims"] == 1
    Node.objects.update(last_seen_at=timezone.now())
    assert [watch_nodes(), watch_nodes()] == [1, 0]
    assert (
        event_types("acme")
        == event_types(None)
        == ["node.lost", "claim.unreachable", "node.returned", "claim.reachable"]
    )
    assert event_types("globex") == []


def test_a_forgotten_node_is_not_waited_for(listening: Cast) -> None:
    machine = Machine("gpu1", listening.pool)
    lose(machine)
    watch_nodes()
    machine.node.refresh_from_db()
    forget_node(principal=SYSTEM, node=machine.node)
    watch_nodes()
    assert event_types(None) == ["node.lost"]


def test_what_was_decided_of_a_request_is_told(listening: Cast) -> None:
    give(listening.acme, gpus=1)
    asked: dict[str, Any] = {"tenant": listening.acme, "pool": None, "resource": "gpus", "amount": 2, "reason": "more"}
    request = requests.ask(principal=SYSTEM, **asked)
    assert event_types("acme") == []
    requests.counter(principal=SYSTEM, request=request, amount=1)
    requests.accept(principal=SYSTEM, request=request)
    assert [last("quota_request.decided")["granted_amount"], event_types("acme")] == [1, ["quota_request.decided"] * 2]
