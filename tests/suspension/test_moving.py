"""Moves of a claim between GPUs of its node: both charged meanwhile, the old one free afterwards, and the way back."""

from typing import Any

import pytest
from django.db.models import Q
from django.utils import timezone

from apps.nodes.models import Gpu, Node
from apps.quotas.models import AuditEvent, WebhookDelivery
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.desired import desired_state
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.fleet.reserved import holds_of
from apps.scheduling.services.reclaiming.forgetting import forget_node
from tests.cast import GIB, MIB_BYTES, Answer, Cast, Machine, assert_books_agree, give, lose, placed, seen, used

WHY = "Process 7 has no device file of GPU-1: it can only stay there."


def move(cast: Cast, claim: Claim, *gpus: str, query: str = "") -> Answer:
    return cast.max.post(f"claims/{claim.uid}/move/{query}", {"gpus": list(gpus)} if gpus else {})


def others(machine: Machine, *indexes: int) -> list[str]:
    return [machine.gpu(index).uuid for index in indexes]


def core(machine: Machine) -> list[int]:
    return list(Gpu.objects.filter(node=machine.node).order_by("index").values_list("core_used", flat=True))


def document(cast: Cast, claim: Claim) -> dict[str, Any]:
    body: dict[str, Any] = cast.max.get(f"claims/{claim.uid}/").body
    return body


def test_both_gpus_are_charged_until_the_claim_is_in_force_on_the_new_one(cast: Cast, machine: Machine) -> None:
    give(cast.acme, host_memory_mib=10 * GIB, vgpus=1)
    claim, assignment = placed(cast, machine, core_request=50, memory_mib=8 * GIB)
    source, (target,) = assignment.gpu.uuid, others(machine, 2)
    answer = move(cast, claim, target)
    assert (answer.status, answer.body["state"]) == (202, "suspending"), answer.body
    # One quota: the tenant has one claim.
    assert used(cast.acme) == {
        "core_percent": 50, "memory_mib": 8 * GIB, "vgpus": 1, "host_memory_mib": 8 * GIB,
    }  # fmt: skip
    assert core(machine) == [50, 0, 50, 0]
    (order,) = desired_state(machine.node).assignments
    assert (order.suspended, order.gpu_uuid) == (True, source)
    assert_books_agree()
    machine.say(seen(assignment, "suspended", saved_bytes=3 * GIB * MIB_BYTES))
    (order,) = desired_state(machine.node).assignments
    assert (order.suspended, order.gpu_uuid, order.generation) == (False, target, 3)
    assert core(machine) == [50, 0, 50, 0]
    assert document(cast, claim)["state"] == "resuming"
    assert_books_agree()
    machine.say(seen(assignment, "in_force"))
    body = document(cast, claim)
    assert (body["state"], body["reasons"], body["host_memory_mib"]) == ("active", [], 0)
    assert [item["gpu_uuid"] for item in body["assignments"]] == [target]
    assert core(machine) == [0, 0, 50, 0]
    assert [state for state, _ in Claim.objects.get(pk=claim.pk).timeline][-3:] == ["suspending", "resuming", "active"]
    assert_books_agree()
    ordered = AuditEvent.objects.get(action="claim.move").after or {}
    assert ordered["moves"] == [{"from": source, "to": target}]
    assert AuditEvent.objects.get(action="claim.moved").after == {"moves": [{"from": source, "to": target}]}


def test_the_placement_policy_chooses_where_no_gpu_is_named(cast: Cast, machine: Machine) -> None:
    claim, assignment = placed(cast, machine, core_request=60)
    placed(cast, machine, core_request=60)
    preview = move(cast, claim, query="?dry_run=true")
    assert preview.status == 200, preview.body
    ((where),) = preview.body["moves"]
    assert where["from"] == assignment.gpu.uuid
    assert preview.body["pause_seconds"] == 6
    assert core(machine) == [60, 60, 0, 0]
    assert move(cast, claim).status == 202
    machine.obey()
    machine.obey()
    assert [item["gpu_uuid"] for item in document(cast, claim)["assignments"]] == [where["to"]]
    assert core(machine)[:2] == [0, 60]


def test_a_claim_of_two_gpus_moves_only_the_one_that_it_leaves(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine, core_request=100, gpu_count=2)
    assert move(cast, claim, *others(machine, 1, 3)).status == 202
    assert core(machine) == [100, 100, 0, 100]
    machine.obey()
    machine.obey()
    assert [item["gpu_index"] for item in document(cast, claim)["assignments"]] == [3, 1]
    assert core(machine) == [0, 100, 0, 100]
    assert_books_agree()


def test_a_claim_that_cannot_be_suspended_stays_and_its_target_is_free(cast: Cast, machine: Machine) -> None:
    claim, assignment = placed(cast, machine, core_request=50)
    move(cast, claim, *others(machine, 1))
    machine.say(seen(assignment, "in_force", suspend_refused=WHY))
    body = document(cast, claim)
    assert (body["state"], body["reasons"][0]["code"], body["reasons"][0]["detail"]) == ("active", "move-refused", WHY)
    assert core(machine) == [50, 0, 0, 0]
    assert body["host_memory_mib"] == 0
    assert_books_agree()


def test_a_claim_that_cannot_resume_there_goes_back_to_where_it_was(cast: Cast, machine: Machine) -> None:
    claim, assignment = placed(cast, machine, core_request=50)
    source = assignment.gpu.uuid
    move(cast, claim, *others(machine, 1))
    machine.obey(memory_bytes=GIB * MIB_BYTES)
    # A call that hangs is tried again by the agent: some programs may be there already.
    machine.say(seen(assignment, "resuming", suspend_refused="cuCheckpointProcessRestore has not returned."))
    assert core(machine) == [50, 50, 0, 0]
    machine.say(seen(assignment, "suspended", suspend_refused=WHY))
    (order,) = desired_state(machine.node).assignments
    assert (order.suspended, order.gpu_uuid, order.generation) == (False, source, 4)
    assert core(machine) == [50, 0, 0, 0]
    assert document(cast, claim)["state"] == "resuming"
    assert_books_agree()
    machine.obey()
    body = document(cast, claim)
    assert (body["state"], body["reasons"][0]["code"]) == ("active", "move-refused")
    assert body["assignments"][0]["gpu_uuid"] == source
    assert_books_agree()


def test_reservations_count_both_gpus_of_a_claim_that_moves(cast: Cast, machine: Machine) -> None:
    claim, assignment = placed(cast, machine, core_request=50)
    target = machine.gpu(2)
    assert move(cast, claim, target.uuid).status == 202
    holds = holds_of(Q(node=machine.node), now=timezone.now())
    found = sorted((hold.gpu, hold.core) for hold in holds)
    assert found == sorted([(assignment.gpu.uuid, 50), (target.uuid, 50)])
    assert [hold.gpu for hold in holds_of(Q(pk=target.pk), now=timezone.now())] == [target.uuid]
    machine.obey()
    machine.obey()
    assert [hold.gpu for hold in holds_of(Q(node=machine.node), now=timezone.now())] == [target.uuid]


def test_webhooks_tell_a_move_and_no_resumption(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine)
    events = ["claim.moved", "claim.resumed", "claim.suspended", "claim.suspend_failed"]
    cast.anna.post("webhooks/", {"tenant": "acme", "url": "https://hooks.example.org/x", "events": events})
    move(cast, claim)
    machine.obey()
    machine.obey()
    assert list(WebhookDelivery.objects.values_list("kind", flat=True)) == ["claim.moved"]


@pytest.mark.parametrize("reports", [0, 1])
def test_a_release_within_a_move_gives_both_gpus_back(cast: Cast, machine: Machine, reports: int) -> None:
    give(cast.acme, host_memory_mib=None)
    claim, _ = placed(cast, machine, core_request=50)
    move(cast, claim)
    for _ in range(reports):
        machine.obey()
    release_claim(principal=SYSTEM, claim=claim)
    assert sum(core(machine)) == 100
    machine.obey()
    assert core(machine) == [0, 0, 0, 0]
    assert set(used(cast.acme).values()) == {0}
    assert_books_agree()


@pytest.mark.parametrize("reports", [0, 1])
def test_a_node_forgotten_within_a_move_holds_nothing(cast: Cast, machine: Machine, reports: int) -> None:
    claim, _ = placed(cast, machine)
    move(cast, claim)
    for _ in range(reports):
        machine.obey()
    lose(machine)
    forget_node(principal=SYSTEM, node=Node.objects.get(pk=machine.node.pk))
    assert core(machine) == [0, 0, 0, 0]
    assert_books_agree()


def test_every_refusal_names_what_can_be_done(cast: Cast, machine: Machine) -> None:
    claim, assignment = placed(cast, machine, core_request=60)
    placed(cast, machine, core_request=60)
    full, there = others(machine, 1, 3)
    answer = move(cast, claim, full)
    assert (answer.status, answer.code) == (409, "no-room-to-move")
    assert "has 40 % core" in answer.body["detail"]
    assert move(cast, claim, assignment.gpu.uuid).code == "cannot-move"
    assert "has no GPU-0" in move(cast, claim, "GPU-0").body["detail"]
    assert "as many different" in move(cast, claim, there, full).body["detail"]
    cast.olga.patch(f"gpus/{there}/", {"cordoned": True})
    assert "GPU 3 takes no claims now: cordoned" in move(cast, claim, there).body["detail"]
    Gpu.objects.filter(uuid=there).update(cordoned=False, model="Other")
    assert "is a Other" in move(cast, claim, there).body["detail"]
    Node.objects.filter(pk=machine.node.pk).update(can_move=False)
    assert "needs driver 580" in move(cast, claim).body["detail"]
    lose(machine)
    assert move(cast, claim).code == "node-unreachable"
    assert core(machine) == [60, 60, 0, 0]
    assert_books_agree()


def test_a_claim_that_moves_is_neither_suspended_nor_moved_twice(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine)
    assert move(cast, claim).status == 202
    before = document(cast, claim)["generation"]
    assert move(cast, claim).status == 202
    assert document(cast, claim)["generation"] == before
    assert cast.max.post(f"claims/{claim.uid}/suspend/").code == "wrong-state"


def test_only_members_of_the_tenant_move_its_claims(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine)
    assert cast.vera.post(f"claims/{claim.uid}/move/").status == 403
    assert cast.gus.post(f"claims/{claim.uid}/move/").status == 404
