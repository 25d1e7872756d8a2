"""Carries that a drain or the page of a claim orders."""

from django.test import Client
from django.urls import reverse

from agent import wire
from apps.nodes.models import Node
from apps.quotas.models import User, WebhookDelivery
from apps.scheduling.models import Claim
from tests.cast import GIB, TICKET, Cast, Machine, assert_books_agree, placed, seen
from tests.suspension.test_between import core, orders, target_of
from tests.suspension.test_carrying import NOT_WANTED, WHY, carry, charged, claim, home_of, host, machine, other
from tests.suspension.test_drains import fresh, turn

__all__ = ["claim", "machine", "other"]


def test_a_drain_carries_what_it_can_and_restarts_what_it_could_not_carry(
    cast: Cast, machine: Machine, other: Machine, claim: Claim
) -> None:
    plan = cast.olga.post("nodes/gpu1/drain/?dry_run=true", {"mode": "move"}).body
    assert [(one["name"], one["carries"], one["restarts"]) for one in plan["moves"]] == [("train", True, False)]
    assert cast.olga.post("nodes/gpu1/drain/", {"mode": "move", "grace_seconds": 60}).status == 200
    turn()
    assert "its running programs are carried to another node; if" in fresh(claim).reasons[0]["detail"]
    turn(grace_is_over=True)
    assert (fresh(claim).state, claim.moves_by) == ("suspending", "carry")
    other.obey()
    machine.say(seen(home_of(claim), "resuming", suspend_refused=WHY))
    for node in (machine, other):
        node.obey()
    assert (fresh(claim).state, claim.reasons[0]["code"]) == ("active", "carry-refused")
    turn()
    assert (fresh(claim).state, claim.moves_by) == ("suspending", "restart")
    for node in (other, machine, other, machine):
        node.obey()
    assert (fresh(claim).state, core(machine), core(other), charged(cast)) == ("active", 0, 50, 0)
    assert_books_agree()


def test_a_drain_restarts_where_no_node_can_carry(cast: Cast, other: Machine, claim: Claim) -> None:
    Node.objects.filter(pk=other.node.pk).update(can_carry=False)
    plan = cast.olga.post("nodes/gpu1/drain/?dry_run=true", {"mode": "move"}).body
    assert [(one["carries"], one["restarts"]) for one in plan["moves"]] == [(False, True)]
    cast.olga.post("nodes/gpu1/drain/", {"mode": "move", "grace_seconds": 60})
    turn()
    turn(grace_is_over=True)
    assert (fresh(claim).state, claim.moves_by) == ("suspending", "restart")


def test_webhooks_tell_a_carry_and_a_refused_one(cast: Cast, machine: Machine, other: Machine, claim: Claim) -> None:
    events = ["claim.moved", "claim.resumed", "claim.suspended", "claim.suspend_failed"]
    cast.anna.post("webhooks/", {"tenant": "acme", "url": "https://hooks.example.org/x", "events": events})
    carry(cast, claim)
    other.obey()
    machine.say(seen(home_of(claim), "resuming", suspend_refused=WHY))
    for node in (machine, other):
        node.obey()
    carry(cast, claim)
    for node in (other, machine, other, machine):
        node.obey()
    told = WebhookDelivery.objects.order_by("pk").values_list("kind", flat=True)
    assert list(told) == ["claim.suspend_failed", "claim.moved"]


def test_the_page_moves_it_either_way(cast: Cast, other: Machine, claim: Claim) -> None:
    client = Client()
    client.force_login(User.objects.get(username="max"))

    def page() -> str:
        return " ".join(client.get(reverse("claim", args=[claim.uid])).content.decode().split())

    assert "they stand still for up to 42 s, and go on there" in page()
    Node.objects.filter(pk=other.node.pk).update(can_carry=False, checks=[NOT_WANTED])
    assert "Node gpu2 does not carry running programs" in page()
    Node.objects.filter(pk=other.node.pk).update(can_carry=True)
    client.post(reverse("move", args=[claim.uid]), {"node": "gpu2", "how": "carry"})
    assert fresh(claim).moves_by == "carry"
    assert "Its running programs are carried to gpu2, and go on there" in page()
    other.say(seen(target_of(claim, home_of(claim)), "failed", reason=WHY))
    other.obey()
    assert "Not moved" in page()
    assert WHY in page()
    assert fresh(claim).state == "active"
    client.post(reverse("move", args=[claim.uid]), {"node": "gpu2", "how": "restart"})
    assert fresh(claim).moves_by == "restart"


def test_a_claim_of_two_gpus_is_carried_as_one(cast: Cast, machine: Machine, other: Machine) -> None:
    both, _ = placed(cast, machine, core_request=50, memory_mib=8 * GIB, movable=True, gpu_count=2)
    assert carry(cast, both).status == 202
    assert (core(other), host(machine), host(other), charged(cast)) == (100, 16 * GIB, 16 * GIB, 32 * GIB)
    other.obey()
    assert [one.carry for one in orders(machine)] == [wire.Carry(ticket=TICKET)] * 2
    # One of its GPUs is not enough to begin with.
    first, second = both.assignments.filter(gpu__node=machine.node).order_by("gpu_id")
    machine.say(seen(first, "suspended"), seen(second, "suspending"))
    assert all(one.suspended for one in orders(other))
    for node in (machine, other, machine):
        node.obey()
    assert (fresh(both).state, core(machine), core(other), charged(cast)) == ("active", 0, 100, 0)
    assert_books_agree()


def test_a_new_node_keeps_its_room_while_nothing_has_come(cast: Cast, other: Machine, claim: Claim) -> None:
    carry(cast, claim)
    other.say(seen(target_of(claim, home_of(claim)), "suspended", ticket=TICKET, saved_bytes=0))
    assert (host(other), charged(cast)) == (8 * GIB, 16 * GIB)
