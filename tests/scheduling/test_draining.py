"""Draining a node: its claims are notified, leave after a grace and are placed elsewhere; previews change nothing."""

from typing import Any

import pytest
from django.db import OperationalError
from django.utils import timezone

from apps.nodes.models import Node
from apps.quotas.models import AuditEvent, WebhookDelivery
from apps.quotas.principals import SYSTEM
from apps.quotas.services.webhooks import hooks
from apps.scheduling.models import Claim
from apps.scheduling.services.cycles.rounds import run_round
from apps.scheduling.services.reclaiming import draining, preemption
from apps.scheduling.tasks import drive_preemption
from tests.cast import Cast, Machine, assert_books_agree, cast, give_plenty, placed

__all__ = ["cast"]


@pytest.fixture
def machine(cast: Cast) -> Machine:
    give_plenty(cast.acme, cast.globex)
    return Machine("gpu1", cast.pool, gpus=1)


def turn(*, grace_is_over: bool = False) -> None:
    """Run the task, with live nodes."""
    Node.objects.update(last_seen_at=timezone.now())
    if grace_is_over:
        Claim.objects.filter(preempt_at__isnull=False).update(preempt_at=timezone.now())
    draining.drive()
    preemption.drive()


def drain(cast: Cast, **asked: Any) -> Any:
    return cast.olga.post("nodes/gpu1/drain/", asked)


def test_claims_are_told_leave_and_are_placed_elsewhere(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine)
    hooks.create(
        principal=SYSTEM, tenant=cast.acme, url="https://hooks.example.org/x", events=["claim.preemption_notice"]
    )
    assert drain(cast, grace_seconds=60).body["state"] == "draining"
    turn()
    claim.refresh_from_db()
    assert (claim.state, claim.reasons[0]["code"]) == ("active", "drained")
    assert claim.preempt_at is not None
    assert claim.preempt_at > timezone.now()
    assert WebhookDelivery.objects.get().kind == "claim.preemption_notice"
    turn(grace_is_over=True)
    machine.obey()
    claim.refresh_from_db()
    assert claim.state == "queued"
    other = Machine("gpu2", cast.pool, gpus=1)
    run_round(cast.pool)
    other.obey()
    claim.refresh_from_db()
    assert claim.state == "active"
    assert machine.gpu().core_used == 0
    assert_books_agree()
    actions = AuditEvent.objects.filter(action__in=["node.drain", "claim.notice", "claim.preempt"]).order_by("pk")
    assert [event.action for event in actions] == ["node.drain", "claim.notice", "claim.preempt"]


def test_a_turn_that_comes_twice_tells_once(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine)
    drain(cast)
    turn()
    turn()
    assert AuditEvent.objects.filter(action="claim.notice", object_id=str(claim.uid)).count() == 1


def test_a_claim_over_which_a_turn_raises_holds_up_no_other(
    cast: Cast, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (placed(cast, machine, core_request=10)[0] for _ in range(2))
    drain(cast)
    tell = draining._tell

    def raising(seen: Claim, node: Node, *end: str) -> bool:
        if seen.pk == first.pk:
            raise ZeroDivisionError("as if by a mistake")
        return tell(seen, node, *end)

    monkeypatch.setattr(draining, "_tell", raising)
    turn()
    assert [claim.pk for claim in Claim.objects.filter(preempt_at__isnull=False)] == [second.pk]


def test_preemption_has_its_turn_whatever_draining_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = list[str]()

    def raising() -> int:
        raise OperationalError("as if by a deadlock")

    def counted() -> int:
        turns.append("preemption")
        return 0

    monkeypatch.setattr(draining, "drive", raising)
    monkeypatch.setattr(preemption, "drive", counted)
    with pytest.raises(OperationalError):
        drive_preemption()
    assert turns == ["preemption"]


def test_uncordoning_spares_who_was_told_and_still_runs(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine)
    drain(cast)
    turn()
    assert cast.olga.patch("nodes/gpu1/", {"cordoned": False}).body["draining_at"] is None
    turn(grace_is_over=True)
    claim.refresh_from_db()
    assert (claim.state, claim.preempt_at, claim.reasons) == ("active", None, [])


def test_a_group_goes_as_a_whole(cast: Cast, machine: Machine) -> None:
    second = Machine("gpu2", cast.pool, gpus=1)
    claims = [placed(cast, one, core_request=100, gpu_count=1)[0] for one in (machine, second)]
    Claim.objects.filter(pk__in=[claim.pk for claim in claims]).update(group="train", group_size=2)
    drain(cast)
    turn()
    assert Claim.objects.filter(preempt_at__isnull=False).count() == 2


def test_a_claim_of_a_pod_stays(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine)
    Claim.objects.filter(pk=claim.pk).update(pod={"name": "train-0", "namespace": "ml"})
    plan = cast.olga.post("nodes/gpu1/drain/?dry_run=true", {}).body
    assert (plan["moves"], [one["claim"] for one in plan["stays"]]) == ([], [str(claim.uid)])
    drain(cast)
    turn()
    claim.refresh_from_db()
    assert claim.preempt_at is None


def test_a_look_first_says_who_moves_where_and_who_waits(cast: Cast, machine: Machine) -> None:
    placed(cast, machine, name="large", core_request=60, priority=5)
    placed(cast, machine, name="small", core_request=40)
    Machine("gpu2", cast.pool, gpus=1)
    plan = cast.olga.post("nodes/gpu1/drain/?dry_run=true", {"grace_seconds": 5}).body
    assert [(move["name"], move["to"]) for move in plan["moves"]] == [("large", "gpu2"), ("small", "gpu2")]
    assert plan["grace_seconds"] == 5
    Node.objects.filter(name="gpu2").update(cordoned=True)
    plan = cast.olga.post("nodes/gpu1/drain/?dry_run=true", {}).body
    assert [(move["to"], move["reasons"][0]["code"]) for move in plan["moves"]] == [(None, "node-unavailable")] * 2
    node = Node.objects.get(name="gpu1")
    assert (node.cordoned, node.draining_at) == (False, None)
    assert not Claim.objects.filter(preempt_at__isnull=False).exists()


def test_only_operators_drain_and_only_what_they_have_seen(cast: Cast, machine: Machine) -> None:
    assert cast.anna.post("nodes/gpu1/drain/", {}).status == 403
    assert cast.olga.post("nodes/gpu1/drain/", {"grace_seconds": -1}).status == 400
    assert cast.olga.post("nodes/gpu1/drain/", {}, if_match='"99"').status == 412
    assert Node.objects.get(name="gpu1").draining_at is None
