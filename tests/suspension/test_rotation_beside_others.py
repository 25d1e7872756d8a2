"""The rotation beside refusals, quotas, host memory, webhooks and audit."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any
from unittest import mock

import pytest
from django.utils import timezone

from apps.nodes.models import Node
from apps.quotas.models import AuditEvent, EventKind, Pool, ResourceQuota, WebhookDelivery
from apps.quotas.principals import SYSTEM
from apps.quotas.services import tenants
from apps.quotas.services.webhooks import hooks
from apps.scheduling.models import Assignment, Claim, RotationMember
from apps.scheduling.services.charging import states as charging_states
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.cycles.rounds import run_round
from apps.suspension.rotation import rotating
from apps.suspension.services import NoHostMemory, suspend_claim
from tests.cast import GIB, Cast, Machine, ask, assert_books_agree, give, give_plenty, seen
from tests.suspension.rotations import LONG, Clock, clock, machine, running, states, work

__all__ = ["clock", "machine"]
pytestmark = pytest.mark.django_db


def refuse(machine: Machine, claim: Claim, why: str) -> None:
    """Report that the node cannot do what is wanted of the claim."""
    machine.say(seen(Assignment.objects.get(claim=claim), "in_force", suspend_refused=why))


def test_a_claim_that_cannot_be_suspended_stays_in_and_is_tried_again_later(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    claims = running(cast, machine, clock, 2)
    rotating.drive()
    assert states(claims) == ["suspending", "queued"]
    refuse(machine, claims[0], "It uses managed memory.")
    for _ in range(3):
        work(cast, machine, clock)
    assert states(claims) == ["active", "queued"]
    clock.forward(timedelta(minutes=11))
    work(cast, machine, clock)
    assert states(claims) == ["suspended", "active"]


def test_one_that_cannot_be_resumed_is_passed_over_for_a_while(cast: Cast, machine: Machine, clock: Clock) -> None:
    claims = running(cast, machine, clock)
    for _ in range(2):
        work(cast, machine, clock)
        clock.forward(LONG)
    assert states(claims) == ["suspended", "suspended", "active"]
    rotating.drive()
    machine.obey()
    run_round(cast.pool)
    first = next(claim for claim, state in zip(claims, states(claims), strict=True) if state == "resuming")
    row = Assignment.objects.get(claim=first)
    machine.say(seen(row, "suspended", suspend_refused="GPU 0 has no room."))
    for _ in range(2):
        work(cast, machine, clock)
    assert Claim.objects.get(pk=first.pk).state in {"suspended", "suspending"}
    work(cast, machine, clock)
    assert "active" in states(claims), "another one comes in meanwhile"
    for _ in range(4):
        clock.forward(LONG)
        work(cast, machine, clock)
    assert RotationMember.objects.get(claim=first).paused_until is None, "it was tried again, and came in"
    assert_books_agree()


def test_one_whose_quota_is_used_by_others_is_passed_over(cast: Cast, machine: Machine, clock: Clock) -> None:
    ResourceQuota.objects.filter(tenant=cast.acme).delete()
    give(cast.acme, core_percent=200, memory_mib=None)
    give_plenty(cast.globex)
    mine = running(cast, machine, clock, 1)
    theirs = ask(cast, tenant=cast.globex, core_request=100, memory_mib=20 * GIB, name="theirs")
    run_round(cast.pool)
    work(cast, machine, clock)
    assert states([*mine, theirs]) == ["suspended", "active"]
    # All of the quota is used elsewhere: the other pool has room.
    other = tenants.create_pool(principal=SYSTEM, name="other")
    Machine("gpu2", other, gpus=2)
    for number in range(2):
        ask(cast, pool=other, core_request=100, name=f"elsewhere-{number}")
    run_round(other)
    for _ in range(2):
        clock.forward(LONG)
        work(cast, machine, clock, runs=16)
        assert states([*mine, theirs]) == ["suspended", "active"], "nobody stays out for one that cannot come in"
    assert RotationMember.objects.get(claim=mine[0]).paused_until is not None
    ResourceQuota.objects.filter(tenant=cast.acme, resource="core_percent").update(hard=300)
    clock.forward(timedelta(minutes=6))
    work(cast, machine, clock)
    assert states([*mine, theirs]) == ["active", "suspended"]
    assert_books_agree()


def test_without_host_memory_nobody_goes_out(cast: Cast, machine: Machine, clock: Clock) -> None:
    Node.objects.update(host_memory_mib=25 * GIB)
    claims = running(cast, machine, clock)
    for _ in range(4):
        work(cast, machine, clock)
        clock.forward(LONG)
    assert states(claims) == ["suspended", "active", "queued"], "the node has memory for one"
    give(cast.acme, host_memory_mib=25 * GIB)
    Node.objects.update(host_memory_mib=100 * GIB)
    for _ in range(2):
        work(cast, machine, clock)
        clock.forward(LONG)
    assert states(claims) == ["suspended", "active", "queued"], "and the quota, too"
    assert_books_agree()


def test_a_limit_that_the_picture_does_not_have_bars_only_that_claim(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    """A member's own limit of host memory refuses the order; the rotation goes on with another claim."""
    claims = running(cast, machine, clock, 3, core_request=50, memory_mib=8 * GIB)
    refused = []

    def suspend(*, claim: Claim, **facts: Any) -> Claim:
        if claim.pk == claims[0].pk:
            refused.append(claim)
            raise NoHostMemory("There is none.")
        return suspend_claim(claim=claim, **facts)

    with mock.patch.object(rotating, "suspend_claim", suspend):
        work(cast, machine, clock)
    assert refused
    assert states(claims) == ["active", "suspended", "active"]


@pytest.mark.parametrize(("slices", "least"), [(9, 11), pytest.param(60, 75, marks=pytest.mark.long)])
def test_it_is_quiet(cast: Cast, machine: Machine, clock: Clock, slices: int, least: int) -> None:
    """No webhook event of a swap, two rows of the audit log for each claim, a timeline that ends."""
    hooks.create(principal=SYSTEM, tenant=cast.acme, url="https://hooks.example.org/x", events=list(EventKind.values))
    claims = running(cast, machine, clock)
    sent = WebhookDelivery.objects.count()
    for _ in range(slices):
        work(cast, machine, clock)
        clock.forward(LONG)
    assert RotationMember.objects.count() == 3
    kinds = set(WebhookDelivery.objects.order_by("pk").values_list("kind", flat=True)[sent:])
    assert kinds <= {"claim.active"}
    steps = [len(claim.timeline) for claim in Claim.objects.all()]
    assert least < max(steps) <= 200
    Pool.objects.update(oversubscribe=None)
    for claim in claims:
        release_claim(principal=SYSTEM, claim=claim)
    work(cast, machine, clock)
    rows = AuditEvent.objects.filter(object_type="claim", object_id=str(claims[0].uid)).order_by("pk")
    assert list(rows.values_list("action", flat=True)) == [
        "claim.create", "claim.rotation_begin", "claim.release", "claim.rotation_end",
    ]  # fmt: skip


def test_the_timeline_keeps_its_first_and_last_steps() -> None:
    timeline: list[list[str]] = []
    for number in range(500):
        timeline = charging_states.append_step(timeline, f"s{number}", timezone.now())
    names = [name for name, _ in timeline]
    assert names == [*(f"s{number}" for number in range(20)), *(f"s{number}" for number in range(320, 500))]


def test_two_runs_at_once_are_one(cast: Cast, machine: Machine, clock: Clock) -> None:
    running(cast, machine, clock)

    @contextmanager
    def taken(name: str) -> Iterator[bool]:
        yield False

    with mock.patch.object(rotating, "exclusive", taken):
        assert rotating.drive() == 0


def test_places_say_who_comes_next(cast: Cast, machine: Machine, clock: Clock) -> None:
    claims = running(cast, machine, clock)
    for _ in range(2):
        work(cast, machine, clock)
        clock.forward(LONG)
    work(cast, machine, clock)
    inside = next(claim for claim, state in zip(claims, states(claims), strict=True) if state == "active")
    document = cast.max.get(f"claims/{inside.uid}/").body["rotation"]
    assert document["place"] == 0
    assert datetime.fromisoformat(document["changes_at"]) > timezone.now()
    others = [cast.max.get(f"claims/{claim.uid}/").body["rotation"] for claim in claims if claim.pk != inside.pk]
    assert sorted(item["place"] for item in others) == [1, 2]
    next_one = min(others, key=lambda item: item["place"])
    assert next_one["changes_at"] == document["changes_at"]
    assert cast.max.get("claims/").body["results"][0]["rotation"] is not None
