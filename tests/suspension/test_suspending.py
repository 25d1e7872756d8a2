"""Suspension of a claim: charges before, room for others after, and every refusal in words."""

from collections.abc import Callable

import pytest

from agent import wire
from apps.nodes.models import Node
from apps.nodes.services import nodes
from apps.quotas.models import AuditEvent, WebhookDelivery
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Assignment, Claim
from apps.scheduling.services.claims.desired import desired_state
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.cycles.rounds import run_round
from apps.scheduling.services.reclaiming.forgetting import forget_node
from apps.scheduling.tasks import expire_claims
from tests.cast import (
    GIB,
    MIB_BYTES,
    Answer,
    Cast,
    Machine,
    ask,
    assert_books_agree,
    give,
    give_plenty,
    hello,
    lose,
    placed,
    seen,
    used,
)
from tests.scheduling.clock import Clock


def suspend(cast: Cast, claim: Claim, query: str = "") -> Answer:
    return cast.max.post(f"claims/{claim.uid}/suspend/{query}")


def resume(cast: Cast, claim: Claim, query: str = "") -> Answer:
    return cast.max.post(f"claims/{claim.uid}/resume/{query}")


def suspended(cast: Cast, machine: Machine, *, saved_mib: int = 2 * GIB, **asked: object) -> Claim:
    """Create a claim and suspend it."""
    claim, _ = placed(cast, machine, **asked)
    assert suspend(cast, claim).status == 202
    machine.obey(memory_bytes=saved_mib * MIB_BYTES)
    claim.refresh_from_db()
    assert claim.state == "suspended", claim.state
    return claim


def wanted(machine: Machine) -> wire.Assignment:
    (one,) = desired_state(machine.node).assignments
    return one


def host_memory(machine: Machine) -> int:
    return Node.objects.get(pk=machine.node.pk).host_memory_used_mib


def test_host_memory_is_charged_before_the_agent_is_asked_and_the_gpu_is_free_after_it_answered(
    cast: Cast, machine: Machine
) -> None:
    give(cast.acme, host_memory_mib=10 * GIB, vgpus=10)
    claim, assignment = placed(cast, machine, core_request=100, memory_mib=8 * GIB)
    before = wanted(machine)
    answer = suspend(cast, claim)
    assert (answer.status, answer.body["state"], answer.body["host_memory_mib"]) == (202, "suspending", 8 * GIB)
    assert used(cast.acme) == {"core_percent": 100, "memory_mib": 8 * GIB, "vgpus": 1, "host_memory_mib": 8 * GIB}
    assert host_memory(machine) == 8 * GIB
    assert (machine.gpu().core_used, machine.gpu().memory_used_mib) == (100, 8 * GIB)
    after = wanted(machine)
    assert (after.suspended, after.generation) == (True, before.generation + 1)
    machine.say(seen(assignment, "suspending"))
    assert machine.gpu().core_used == 100
    machine.say(seen(assignment, "suspended", saved_bytes=3 * GIB * MIB_BYTES - 5))
    assert cast.max.get(f"claims/{claim.uid}/").body["state"] == "suspended"
    assert used(cast.acme) == {"core_percent": 0, "memory_mib": 0, "vgpus": 0, "host_memory_mib": 3 * GIB}
    assert host_memory(machine) == 3 * GIB
    assert (machine.gpu().core_used, machine.gpu().memory_used_mib) == (0, 0)
    assert_books_agree()


def test_the_room_of_a_suspended_claim_is_given_to_another_and_it_resumes_on_its_own_gpu_afterwards(
    cast: Cast, machine: Machine
) -> None:
    Node.objects.update(can_move=False)
    claim = suspended(cast, machine, core_request=100)
    own = claim.assignments.get().gpu_id
    others = [ask(cast, tenant=cast.globex, core_request=100, name=f"other-{number}") for number in range(4)]
    run_round(cast.pool)
    machine.obey()
    there = Assignment.objects.filter(claim__in=others)
    assert there.count() == 4
    answer = resume(cast, claim)
    assert (answer.status, answer.body["state"]) == (202, "resuming")
    run_round(cast.pool)
    document = cast.max.get(f"claims/{claim.uid}/").body
    assert document["state"] == "resuming"
    assert document["reasons"] == [{"code": "gpu-core", "gpus": 1, "detail": "1 GPU has less than 100 % core free"}]
    # Another GPU is of no use to it: this node cannot move programs.
    elsewhere, here = there.exclude(gpu=own).first(), there.get(gpu=own)
    assert elsewhere is not None
    release_claim(principal=SYSTEM, claim=elsewhere.claim)
    machine.obey(memory_bytes=GIB)
    run_round(cast.pool)
    assert cast.max.get(f"claims/{claim.uid}/").body["state"] == "resuming"
    assert desired_of(machine, claim).suspended
    release_claim(principal=SYSTEM, claim=here.claim)
    machine.obey(memory_bytes=GIB)
    run_round(cast.pool)
    assert not desired_of(machine, claim).suspended
    assert host_memory(machine) > 0
    machine.obey()
    claim.refresh_from_db()
    assert (claim.state, claim.assignments.get().gpu_id) == ("active", own)
    assert host_memory(machine) == 0
    assert claim.charged["core_percent"] == 100
    assert_books_agree()


def desired_of(machine: Machine, claim: Claim) -> wire.Assignment:
    (one,) = [row for row in desired_state(machine.node).assignments if row.claim_uid == str(claim.uid)]
    return one


def test_a_repeated_order_changes_nothing(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine)
    first, second = suspend(cast, claim).body, suspend(cast, claim).body
    assert first["version"] == second["version"]
    machine.obey()
    assert (suspend(cast, claim).status, suspend(cast, claim).body["state"]) == (200, "suspended")
    first, second = resume(cast, claim).body, resume(cast, claim).body
    assert first["version"] == second["version"]
    run_round(cast.pool)
    machine.obey()
    assert (resume(cast, claim).status, resume(cast, claim).body["state"]) == (200, "active")


def test_a_claim_that_waits_to_resume_can_stay_suspended_instead(cast: Cast, machine: Machine) -> None:
    claim = suspended(cast, machine)
    resume(cast, claim)
    assert suspend(cast, claim).body["state"] == "suspended"
    run_round(cast.pool)
    assert wanted(machine).suspended
    assert_books_agree()


def test_a_refused_suspension_leaves_the_claim_active_and_says_why(cast: Cast, machine: Machine) -> None:
    webhook = cast.anna.post(
        "webhooks/", {"tenant": "acme", "url": "https://hooks.example.org/x", "events": ["claim.suspend_failed"]}
    )
    assert webhook.status == 201, webhook.body
    claim, assignment = placed(cast, machine)
    suspend(cast, claim)
    why = "Process 17 uses managed memory, which cannot be saved: end it, or release the claim."
    machine.say(seen(assignment, "in_force", suspend_refused=why))
    document = cast.max.get(f"claims/{claim.uid}/").body
    assert document["state"] == "active"
    assert document["reasons"] == [{"code": "suspend-refused", "gpus": 0, "detail": why}]
    assert (document["host_memory_mib"], host_memory(machine)) == (0, 0)
    order = wanted(machine)
    assert (order.suspended, order.generation) == (False, document["generation"])
    # It is not tried again by itself, and the late report of the refused generation changes nothing.
    machine.say(seen(assignment, "in_force", generation=order.generation - 1, suspend_refused=why))
    assert cast.max.get(f"claims/{claim.uid}/").body["version"] == document["version"]
    machine.obey()
    assert cast.max.get(f"claims/{claim.uid}/").body["observed_generation"] == order.generation
    message = WebhookDelivery.objects.get(kind="claim.suspend_failed")
    assert "managed memory" in message.body
    assert_books_agree()


def test_a_refused_resumption_leaves_the_claim_suspended_and_gives_its_room_back(cast: Cast, machine: Machine) -> None:
    claim = suspended(cast, machine, core_request=100)
    resume(cast, claim)
    run_round(cast.pool)
    assignment = claim.assignments.get()
    assert (assignment.state, machine.gpu().core_used) == ("resuming", 100)
    why = "It had 9000 MiB, and its limit is 8192 MiB: raise memory_mib to 9000."
    machine.say(seen(assignment, "suspended", suspend_refused=why))
    document = cast.max.get(f"claims/{claim.uid}/").body
    assert (document["state"], document["reasons"][0]["code"]) == ("suspended", "resume-refused")
    assert document["reasons"][0]["detail"] == why
    assert machine.gpu().core_used == 0
    assert wanted(machine).suspended
    assert document["host_memory_mib"] == 2 * GIB
    assert_books_agree()


@pytest.mark.parametrize("steps", ["suspend", "suspend obey", "suspend obey resume", "suspend obey resume round"])
def test_release_gives_everything_back_from_every_state(cast: Cast, machine: Machine, steps: str) -> None:
    give(cast.acme, host_memory_mib=None)
    claim, _ = placed(cast, machine)
    acts: dict[str, Callable[[], object]] = {
        "suspend": lambda: suspend(cast, claim),
        "obey": machine.obey,
        "resume": lambda: resume(cast, claim),
        "round": lambda: run_round(cast.pool),
    }
    for step in steps.split():
        acts[step]()
    assert cast.max.delete(f"claims/{claim.uid}/").status == 202
    assert not wanted(machine).present
    machine.obey()
    claim.refresh_from_db()
    assert claim.state == "released"
    assert set(used(cast.acme).values()) == {0}
    assert host_memory(machine) == 0
    assert_books_agree()


def test_the_host_memory_of_a_lost_node_stays_charged_until_the_node_is_forgotten(cast: Cast, machine: Machine) -> None:
    give(cast.acme, host_memory_mib=None)
    suspended(cast, machine)
    lose(machine)
    assert used(cast.acme)["host_memory_mib"] == 2 * GIB
    forget_node(principal=SYSTEM, node=Node.objects.get(pk=machine.node.pk))
    assert used(cast.acme)["host_memory_mib"] == 0
    assert host_memory(machine) == 0
    assert_books_agree()


def test_a_quota_of_host_memory_refuses_before_anything_happens(cast: Cast, machine: Machine) -> None:
    give(cast.acme, host_memory_mib=4 * GIB)
    claim, _ = placed(cast, machine, memory_mib=8 * GIB)
    answer = suspend(cast, claim)
    assert (answer.status, answer.code) == (409, "quota-exceeded")
    assert answer.body["detail"] == "Host-memory quota exceeded: requested 8 GiB, 4 GiB of 4 GiB available"
    assert cast.max.get(f"claims/{claim.uid}/").body["state"] == "active"
    assert (host_memory(machine), wanted(machine).suspended) == (0, False)


def test_a_node_without_room_for_the_claim_refuses_with_its_numbers(cast: Cast, machine: Machine) -> None:
    suspended(cast, machine, memory_mib=16 * GIB, saved_mib=16 * GIB)
    claim, _ = placed(cast, machine, memory_mib=8 * GIB)
    answer = suspend(cast, claim)
    assert (answer.status, answer.code) == (409, "no-host-memory")
    assert "requested 8 GiB, 4 GiB of 20 GiB available" in answer.body["detail"]
    assert_books_agree()


def test_every_refusal_names_what_can_be_done(cast: Cast, machine: Machine) -> None:
    waiting = ask(cast)
    assert (suspend(cast, waiting).code, resume(cast, waiting).code) == ("wrong-state", "wrong-state")
    release_claim(principal=SYSTEM, claim=waiting)
    claim, _ = placed(cast, machine)
    Claim.objects.filter(pk=claim.pk).update(pod={"kind": "ResourceClaim", "uid": "u", "namespace": "a", "name": "b"})
    assert (suspend(cast, claim).status, suspend(cast, claim).code) == (409, "cannot-suspend")
    Claim.objects.filter(pk=claim.pk).update(pod=None, group="g", group_size=2)
    assert suspend(cast, claim).body["of"] == "group"
    Claim.objects.filter(pk=claim.pk).update(group=None, group_size=None)
    lose(machine)
    assert suspend(cast, claim).code == "node-unreachable"
    nodes.take_hello(node=machine.node, hello=hello("gpu1"))
    answer = suspend(cast, claim)
    assert answer.code == "suspend-unsupported"
    assert "gpu1" in answer.body["detail"]


def test_only_members_of_the_tenant_suspend_its_claims(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine)
    for order in ("suspend", "resume"):
        assert cast.vera.post(f"claims/{claim.uid}/{order}/").status == 403
        assert cast.gus.post(f"claims/{claim.uid}/{order}/").status == 404
    assert suspend(cast, claim).status == 202
    event = AuditEvent.objects.get(action="claim.suspend")
    assert event.before == {"state": "active"}
    assert event.after == {"state": "suspending", "host_memory_mib": 8 * GIB, "by": "owner"}


def test_a_preview_says_what_would_come_free_and_changes_nothing(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine, core_request=30, memory_mib=8 * GIB)
    answer = suspend(cast, claim, "?dry_run=true")
    assert (answer.status, answer.body["state"], answer.body["dry_run"]) == (200, "suspending", True)
    assert answer.body["frees"] == {"core_percent": 30, "memory_mib": 8 * GIB, "vgpus": 1, "gpus": 0}
    assert answer.body["host_memory"] == [{"node": "gpu1", "needed_mib": 8 * GIB, "free_mib": 20 * GIB}]
    claim.refresh_from_db()
    assert (claim.state, host_memory(machine)) == ("active", 0)
    suspend(cast, claim)
    machine.obey()
    answer = resume(cast, claim, "?dry_run=true")
    assert (answer.body["state"], answer.body["gpus"]) == ("resuming", [machine.gpu().uuid])
    claim.refresh_from_db()
    assert claim.state == "suspended"


def test_limits_of_a_suspended_claim_can_be_changed_and_are_charged_when_it_resumes(
    cast: Cast, machine: Machine
) -> None:
    claim = suspended(cast, machine, core_request=30)
    answer = cast.max.patch(f"claims/{claim.uid}/", {"core_request": 50, "core_limit": 50, "memory_mib": 9 * GIB})
    assert answer.status == 200, answer.body
    order = wanted(machine)
    assert (order.suspended, order.core_request, order.memory_bytes) == (True, 50, 9 * GIB * MIB_BYTES)
    assert used(cast.acme) == {"core_percent": 0, "memory_mib": 0}
    machine.obey()
    resume(cast, claim)
    run_round(cast.pool)
    machine.obey()
    assert used(cast.acme) == {"core_percent": 50, "memory_mib": 9 * GIB}
    assert_books_agree()


def test_a_claim_that_resumes_waits_for_quota_like_any_other(cast: Cast) -> None:
    quotas = give(cast.acme, core_percent=100, memory_mib=None, host_memory_mib=8 * GIB)
    machine = Machine("gpu1", cast.pool, host_memory_mib=20 * GIB)
    claim = suspended(cast, machine, core_request=60)
    # What it has in host memory is charged already, and not short of anything.
    lowered = cast.olga.patch(f"quotas/{quotas['host_memory_mib'].pk}/", {"hard": 2 * GIB}, If_Match="*")
    assert lowered.status == 200, lowered.body
    cordon = f"gpus/{machine.gpu().uuid}/"
    assert cast.olga.patch(cordon, {"cordoned": True}).status == 200
    other, _ = placed(cast, machine, core_request=60)
    assert cast.olga.patch(cordon, {"cordoned": False}).status == 200
    resume(cast, claim)
    run_round(cast.pool)
    document = cast.max.get(f"claims/{claim.uid}/").body
    assert (document["state"], len(document["reasons"])) == ("resuming", 1)
    assert document["reasons"][0]["detail"].startswith("Core quota exceeded: requested 60 %")
    release_claim(principal=SYSTEM, claim=other)
    machine.obey()
    run_round(cast.pool)
    machine.obey()
    assert cast.max.get(f"claims/{claim.uid}/").body["state"] == "active"
    assert_books_agree()


def test_the_time_without_a_gpu_does_not_count_against_the_time_limit(clock: Clock, cast: Cast) -> None:
    give_plenty(cast.acme)
    machine = Machine("gpu1", cast.pool, host_memory_mib=20 * GIB)
    claim = suspended(cast, machine, time_limit_seconds=3600)
    clock.advance(seconds=600)
    resume(cast, claim)
    suspend(cast, claim)  # it stays after all
    clock.advance(hours=9)
    expire_claims()
    resume(cast, claim)
    run_round(cast.pool)
    machine.obey()
    clock.advance(seconds=3500)
    assert expire_claims() == 0
    clock.advance(seconds=101)
    assert expire_claims() == 1


@pytest.mark.parametrize("kind", ["claim.suspended", "claim.resumed"])
def test_webhooks_are_told(cast: Cast, machine: Machine, kind: str) -> None:
    cast.anna.post("webhooks/", {"tenant": "acme", "url": "https://hooks.example.org/x", "events": [kind]})
    claim = suspended(cast, machine)
    resume(cast, claim)
    run_round(cast.pool)
    machine.obey()
    assert WebhookDelivery.objects.filter(kind=kind).count() == 1
