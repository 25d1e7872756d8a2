"""Claims on lost nodes: their state is unknown, and the pool's failover policy decides what becomes of them."""

import time
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from agent import wire
from apps.nodes.models import Node
from apps.nodes.services import nodes
from apps.quotas.models import Pool, User, WebhookDelivery
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.absences import watch_nodes
from apps.scheduling.services.claims.desired import desired_state
from apps.scheduling.services.cycles.rounds import run_round
from apps.scheduling.services.reclaiming import failover
from tests.cast import GIB, Cast, Machine, assert_books_agree, done, give_plenty, hello, lose, placed, used
from tests.racing import race


@pytest.fixture
def machine(cast: Cast) -> Machine:
    """Create one node, and no limiting quota."""
    give_plenty(cast.acme)
    return Machine("gpu1", cast.pool)


def policy(cast: Cast, name: str, after: int = 30) -> None:
    answer = cast.olga.patch("pools/default/", {"failover_policy": name, "failover_after_seconds": after})
    assert answer.status == 200, answer.body


def test_a_claim_on_a_lost_node_is_unreachable_and_its_stored_state_stays(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine, core_request=30, memory_mib=GIB)
    document = cast.max.get(f"claims/{claim.uid}/").body
    assert (document["reachable"], document["unreachable_since"]) == (True, None)
    lose(machine)
    document = cast.max.get(f"claims/{claim.uid}/").body
    assert (document["state"], document["reachable"]) == ("active", False)
    assert document["unreachable_since"] is not None
    browser = Client()
    browser.force_login(User.objects.get(username="max"))
    page = browser.get(reverse("claim", args=[claim.uid])).content.decode()
    assert "Node unreachable" in page
    assert "Unknown" in page
    assert "In force</" not in page
    assert "Unknown" in browser.get(reverse("claims")).content.decode()
    assert "node gpu1 is unreachable" in browser.get(reverse("overview")).content.decode()


def test_webhooks_get_an_event_of_each_claim(cast: Cast, machine: Machine) -> None:
    body = {"tenant": "acme", "url": "https://example.org/x", "events": ["claim.unreachable", "claim.reachable"]}
    assert cast.anna.post("webhooks/", body).status == 201
    placed(cast, machine, core_request=30, memory_mib=GIB)
    lose(machine)
    watch_nodes()
    Node.objects.update(last_seen_at=timezone.now())
    watch_nodes()
    assert list(WebhookDelivery.objects.values_list("kind", flat=True)) == ["claim.unreachable", "claim.reachable"]


@pytest.mark.parametrize(
    ("name", "after", "state"),
    [("wait", 30, "active"), ("requeue", 3600, "active"), ("requeue", 30, "queued"), ("release", 30, "released")],
)
def test_the_pools_policy_decides(cast: Cast, machine: Machine, name: str, after: int, state: str) -> None:
    policy(cast, name, after)
    claim, _ = placed(cast, machine, core_request=30, memory_mib=GIB)
    failover.drive()
    claim.refresh_from_db()
    assert claim.state == "active"
    lose(machine)
    failover.drive()
    claim.refresh_from_db()
    assert claim.state == state
    moved = state != "active"
    assert used(cast.acme)["core_percent"] == (0 if moved else 30)
    assert [reason["code"] for reason in claim.reasons] == (["node-lost"] if moved else [])
    assert failover.drive() == 0 or not moved
    assert_books_agree()


def test_a_returned_node_takes_no_claims_until_its_agent_has_ended_what_was_moved(cast: Cast, machine: Machine) -> None:
    policy(cast, "requeue")
    claim, old = placed(cast, machine, core_request=30, memory_mib=GIB)
    running = done(desired_state(machine.node).assignments[0])
    lose(machine)
    failover.drive()
    nodes.take_hello(node=machine.node, hello=hello("gpu1"))
    node = Node.objects.get(pk=machine.node.pk)
    wanted = desired_state(node)
    assert (wanted.assignments, node.state) == ([], "returning")
    run_round(cast.pool)
    # The agent has the new desired state, and the old program has not ended yet.
    machine.say(running, frame=wanted.frame)
    assert Node.objects.get(pk=node.pk).state == "returning"
    machine.say(wire.Observation(uid=str(old.uid), generation=1, state="released"), frame=wanted.frame)
    assert Node.objects.get(pk=node.pk).state == "ready"
    run_round(cast.pool)
    claim.refresh_from_db()
    assert claim.state == "assigned"


def test_a_claim_that_was_being_released_is_released(cast: Cast, machine: Machine) -> None:
    policy(cast, "requeue")
    claim, _ = placed(cast, machine, core_request=30, memory_mib=GIB)
    cast.max.delete(f"claims/{claim.uid}/")
    lose(machine)
    failover.drive()
    claim.refresh_from_db()
    assert claim.state == "released"


def return_during_failover(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the node's agent be heard after the failover has begun and before it locks the node; return the state."""
    give_plenty(cast.acme)
    machine = Machine("gpu1", cast.pool)
    Pool.objects.update(failover_policy="requeue", failover_after_seconds=30)
    claim, _ = placed(cast, machine, core_request=30, memory_mib=GIB)
    lose(machine)
    begun, move = [], failover._move

    def slow(*arguments: Any, **more: Any) -> None:
        begun.append(True)
        time.sleep(0.5)
        move(*arguments, **more)

    monkeypatch.setattr(failover, "_move", slow)

    def come_back() -> None:
        while not begun:
            time.sleep(0.01)
        Node.objects.filter(pk=machine.node.pk).update(last_seen_at=timezone.now())

    for result in race([failover.drive, come_back]):
        assert not isinstance(result, Exception), result
    assert_books_agree()
    return Claim.objects.get(pk=claim.pk).state


def test_a_node_that_returns_at_that_moment_keeps_its_claims(real_cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    assert return_during_failover(real_cast, monkeypatch) == "active"


def test_the_control_without_the_second_check_the_claim_is_moved(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failover, "_locked_if_silent", lambda seen: Node.objects.get(pk=seen.pk))
    assert return_during_failover(real_cast, monkeypatch) == "queued"
