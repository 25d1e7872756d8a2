"""Moves of a claim to another node: both places charged meanwhile, the programs at one of them, and the way back."""

from typing import Any

import pytest
from django.utils import timezone

from agent import wire
from apps.nodes.models import Gpu, Node
from apps.quotas.models import AuditEvent
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Assignment, Claim
from apps.scheduling.services.claims.desired import desired_state
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.reclaiming.failover import fail_over
from apps.scheduling.services.reclaiming.forgetting import forget_node
from apps.suspension.between.expiring import give_up
from tests.cast import GIB, Answer, Cast, Machine, assert_books_agree, give, lose, placed, seen, used

WHY = "GPU-1 is not on this node."


@pytest.fixture
def other(cast: Cast, machine: Machine) -> Machine:
    """Create a second node of the pool. The first one is filled first."""
    return Machine("gpu2", cast.pool, host_memory_mib=20 * GIB).stay_online()


def move(cast: Cast, claim: Claim, query: str = "", **wanted: Any) -> Answer:
    return cast.max.post(f"claims/{claim.uid}/move/{query}", {"node": "gpu2", "restart": True, **wanted})


def core(machine: Machine) -> int:
    return sum(Gpu.objects.filter(node=machine.node).values_list("core_used", flat=True))


def orders(machine: Machine) -> list[wire.Assignment]:
    return list(desired_state(machine.node).assignments)


def state(claim: Claim) -> str:
    return Claim.objects.get(pk=claim.pk).state


def target_of(claim: Claim, home: Assignment) -> Assignment:
    return claim.assignments.exclude(pk=home.pk).get()


def movable(cast: Cast, machine: Machine, **asked: Any) -> tuple[Claim, Assignment]:
    """Create an active claim that may move, on this node."""
    claim, home = placed(cast, machine, core_request=50, memory_mib=8 * GIB, movable=True, **asked)
    assert home.gpu.node == machine.node
    return claim, home


def test_each_step_begins_when_the_one_before_is_done(cast: Cast, machine: Machine, other: Machine) -> None:
    give(cast.acme, host_memory_mib=0, vgpus=1)
    claim, _ = movable(cast, machine)
    answer = move(cast, claim, end_seconds=90)
    assert (answer.status, answer.body["state"], answer.body["moves_to"]) == (202, "suspending", "gpu2"), answer.body
    # One quota: the tenant has one claim.
    assert used(cast.acme) == {"core_percent": 50, "memory_mib": 8 * GIB, "vgpus": 1, "host_memory_mib": 0}
    assert (core(machine), core(other)) == (50, 50)
    # 1. The programs run until the new node is ready.
    (here,), (there,) = orders(machine), orders(other)
    assert (here.suspended, there.suspended, there.claim_uid) == (False, True, str(claim.uid))
    assert_books_agree()
    # 2. They end, and no program may start anywhere.
    other.obey()
    (here,), (there,) = orders(machine), orders(other)
    assert (here.suspended, here.end_seconds, here.present, there.suspended) == (True, 90, True, True)
    # 3. The new node is the only one at which they run.
    machine.obey()
    (here,), (there,) = orders(machine), orders(other)
    assert (here.suspended, there.suspended, there.end_seconds) == (True, False, 0)
    assert state(claim) == "resuming"
    assert (core(machine), core(other)) == (50, 50)
    assert_books_agree()
    # 4. The old one gives back what it had.
    other.obey()
    assert (state(claim), core(machine), core(other)) == ("active", 50, 50)
    (here,) = orders(machine)
    assert not here.present
    assert_books_agree()
    machine.obey()
    assert (orders(machine), core(machine), core(other)) == ([], 0, 50)
    body = cast.max.get(f"claims/{claim.uid}/").body
    assert [(item["node"], item["state"]) for item in body["assignments"]] == [("gpu2", "in_force")]
    assert (body["moves_to"], body["reasons"]) == (None, [])
    assert [name for name, _ in Claim.objects.get(pk=claim.pk).timeline][-3:] == ["suspending", "resuming", "active"]
    assert_books_agree()
    assert body["observed_generation"] == body["generation"]
    # It can move on.
    assert move(cast, claim, node="gpu1").status == 202


def test_the_audit_log_says_from_where_to_where(cast: Cast, machine: Machine, other: Machine) -> None:
    claim, home = movable(cast, machine)
    move(cast, claim)
    for node in (other, machine, other):
        node.obey()
    where = {"from": home.gpu.uuid, "to": target_of(claim, home).gpu.uuid, "node": "gpu2"}
    assert AuditEvent.objects.get(action="claim.moved").after == {"moves": [where]}


def test_a_preview_names_the_place_and_changes_nothing(cast: Cast, machine: Machine, other: Machine) -> None:
    claim, home = movable(cast, machine)
    body = cast.max.post(f"claims/{claim.uid}/move/?dry_run=true", {"anywhere": True, "restart": True}).body
    assert [(one["from"], one["node"]) for one in body["moves"]] == [(home.gpu.uuid, "gpu2")]
    assert (body["end_seconds"], state(claim), core(other)) == (60, "active", 0)


def test_the_policy_keeps_a_claim_of_two_gpus_on_one_node(cast: Cast, machine: Machine, other: Machine) -> None:
    claim, _ = movable(cast, machine, gpu_count=2)
    assert cast.max.post(f"claims/{claim.uid}/move/", {"anywhere": True, "restart": True}).status == 202
    for node in (other, machine, other, machine):
        node.obey()
    assert (state(claim), core(machine), core(other)) == ("active", 0, 100)
    assert_books_agree()


def test_named_gpus_are_taken(cast: Cast, machine: Machine, other: Machine) -> None:
    claim, _ = movable(cast, machine)
    assert move(cast, claim, gpus=[other.gpu(3).uuid]).status == 202
    assert other.gpu(3).core_used == 50
    # A second order is the same one.
    assert move(cast, claim).status == 202
    assert core(other) == 50


def refused(cast: Cast, claim: Claim, **wanted: Any) -> tuple[int, str, str]:
    answer = move(cast, claim, **wanted)
    return answer.status, answer.code, answer.body["detail"]


def test_what_cannot_move_is_refused_in_words(cast: Cast, machine: Machine, other: Machine) -> None:
    claim, _ = placed(cast, machine)
    assert refused(cast, claim)[1:] == (
        "cannot-move", "It is not declared movable: its owner does it with `gpucloud claim resize --movable true`.",
    )  # fmt: skip
    assert cast.max.patch(f"claims/{claim.uid}/", {"movable": True}, if_match="*").status == 200
    Claim.objects.filter(pk=claim.pk).update(lease_seconds=60, lease_until=timezone.now())
    assert "lease" in refused(cast, claim)[2]
    Claim.objects.filter(pk=claim.pk).update(lease_seconds=None, lease_until=None)
    status, code, words = refused(cast, claim, restart=False)
    assert (status, code) == (409, "cannot-move")
    assert "SIGUSR1" in words
    assert "no node gpu9" in refused(cast, claim, node="gpu9")[2]
    assert "on node gpu1 already" in refused(cast, claim, node="gpu1")[2]
    assert "has no GPU-x" in refused(cast, claim, gpus=["GPU-x"])[2]
    Node.objects.filter(pk=other.node.pk).update(can_restart=False)
    assert "too old" in refused(cast, claim)[2]
    Node.objects.filter(pk=other.node.pk).update(can_restart=True, cordoned=True)
    assert "takes no claims now: cordoned" in refused(cast, claim)[2]
    Node.objects.filter(pk=other.node.pk).update(cordoned=False, simulated=False)
    assert "simulated" in refused(cast, claim)[2]
    lose(other)
    assert refused(cast, claim)[1] == "node-unreachable"
    assert (core(other), state(claim)) == (0, "active")


def test_room_there_is_needed_of_one_model(cast: Cast, machine: Machine, other: Machine) -> None:
    claim, _ = movable(cast, machine, gpu_model="NVIDIA A10")
    Gpu.objects.filter(node=other.node).update(model="NVIDIA T4")
    assert refused(cast, claim)[:2] == (409, "no-room-to-move")
    Gpu.objects.filter(node=other.node).update(model="NVIDIA A10", core_outside=60)
    assert refused(cast, claim)[:2] == (409, "no-room-to-move")
    assert Assignment.objects.filter(claim=claim).count() == 1


@pytest.mark.parametrize("facts", [{"group": "g", "group_size": 2}])
def test_kinds_that_others_decide_about_are_refused(
    cast: Cast, machine: Machine, other: Machine, facts: dict[str, Any]
) -> None:
    claim, _ = movable(cast, machine)
    Claim.objects.filter(pk=claim.pk).update(**facts)
    assert refused(cast, claim)[1] == "cannot-suspend"


def test_a_new_node_that_refuses_at_once_disturbs_no_program(cast: Cast, machine: Machine, other: Machine) -> None:
    claim, home = movable(cast, machine)
    move(cast, claim)
    other.say(seen(target_of(claim, home), "failed", reason=WHY))
    body = cast.max.get(f"claims/{claim.uid}/").body
    assert (body["state"], body["reasons"][0]["code"], body["reasons"][0]["detail"]) == ("active", "move-refused", WHY)
    (here,), (there,) = orders(machine), orders(other)
    assert (here.suspended, there.present) == (False, False)
    other.obey()
    assert (core(machine), core(other)) == (50, 0)
    assert_books_agree()
    machine.obey()
    body = cast.max.get(f"claims/{claim.uid}/").body
    assert (body["state"], body["observed_generation"]) == ("active", body["generation"])
    # Nothing of the attempt is left.
    assert cast.max.post(f"claims/{claim.uid}/suspend/").status == 202


def test_an_old_node_that_refuses_keeps_the_claim(cast: Cast, machine: Machine, other: Machine) -> None:
    claim, home = movable(cast, machine)
    move(cast, claim)
    other.obey()
    machine.say(seen(home, "in_force", suspend_refused="They do not end."))
    assert state(claim) == "resuming"
    (here,), (there,) = orders(machine), orders(other)
    assert (here.suspended, here.end_seconds, there.present) == (False, 0, False)
    machine.obey()
    other.obey()
    assert (state(claim), core(machine), core(other)) == ("active", 50, 0)
    assert_books_agree()


def test_the_way_back_waits_until_nothing_can_run_on_the_new_node(cast: Cast, machine: Machine, other: Machine) -> None:
    claim, home = movable(cast, machine)
    move(cast, claim)
    other.obey()
    machine.obey()
    target = target_of(claim, home)
    other.say(seen(target, "failed", reason=WHY))
    (here,), (there,) = orders(machine), orders(other)
    assert (here.suspended, there.present, state(claim)) == (True, False, "resuming")
    # The old node repeats what it said: nothing begins there before the new one has confirmed.
    machine.obey()
    other.say(seen(target, "releasing"))
    assert orders(machine)[0].suspended
    other.obey()
    assert not orders(machine)[0].suspended
    machine.obey()
    assert (state(claim), core(machine), core(other)) == ("active", 50, 0)
    assert_books_agree()


@pytest.mark.parametrize("step", range(5))
def test_a_release_ends_it_from_every_step(cast: Cast, machine: Machine, other: Machine, step: int) -> None:
    claim, _ = movable(cast, machine)
    move(cast, claim)
    for node in (other, machine, other, machine)[:step]:
        node.obey()
    release_claim(principal=SYSTEM, claim=claim)
    machine.obey()
    other.obey()
    assert (state(claim), core(machine), core(other)) == ("released", 0, 0)
    assert set(used(cast.acme).values()) == {0}
    assert_books_agree()


@pytest.mark.parametrize("step", range(3))
def test_a_forgotten_new_node_leaves_the_claim_at_its_old_one(
    cast: Cast, machine: Machine, other: Machine, step: int
) -> None:
    claim, _ = movable(cast, machine)
    move(cast, claim)
    for node in (other, machine)[:step]:
        node.obey()
    lose(other)
    forget_node(principal=SYSTEM, node=Node.objects.get(pk=other.node.pk))
    machine.obey()
    machine.obey()
    assert (state(claim), core(machine), core(other)) == ("active", 50, 0)
    assert_books_agree()


def test_a_lost_old_node_does_not_end_a_claim_that_has_moved(cast: Cast, machine: Machine, other: Machine) -> None:
    claim, _ = movable(cast, machine)
    move(cast, claim)
    for node in (other, machine, other):
        node.obey()
    lose(machine)
    cast.pool.change(failover_policy="requeue")
    fail_over(Node.objects.get(pk=machine.node.pk))
    assert (state(claim), Claim.objects.get(pk=claim.pk).shown_state) == ("active", "active")
    forget_node(principal=SYSTEM, node=Node.objects.get(pk=machine.node.pk))
    assert (state(claim), core(machine), core(other)) == ("active", 0, 50)
    assert_books_agree()


def test_what_is_left_on_the_old_node_follows_no_change(cast: Cast, machine: Machine, other: Machine) -> None:
    claim, home = movable(cast, machine)
    move(cast, claim)
    for node in (other, machine, other):
        node.obey()
    assert cast.max.post(f"claims/{claim.uid}/suspend/").code == "wrong-state"
    assert move(cast, claim, node="gpu1").code == "wrong-state"
    assert cast.max.patch(f"claims/{claim.uid}/", {"core_request": 70}, if_match="*").status == 200
    home.refresh_from_db()
    assert (home.state, home.core_request, core(other)) == ("releasing", 50, 70)
    machine.obey()
    other.obey()
    assert (core(machine), core(other), used(cast.acme)["core_percent"]) == (0, 70, 70)
    assert_books_agree()


def test_a_silent_new_node_is_given_up_while_nothing_can_run_there(
    cast: Cast, machine: Machine, other: Machine
) -> None:
    claim, _ = movable(cast, machine)
    move(cast, claim)
    other.obey()
    assert give_up() == 0
    lose(other)
    assert (give_up(), state(claim)) == (1, "resuming")
    assert "gpu2 is silent" in Claim.objects.get(pk=claim.pk).reasons[0]["detail"]
    machine.obey()
    assert state(claim) == "active"
    # Its room there is charged until it has confirmed.
    assert core(other) == 50
    other.stay_online().obey()
    assert core(other) == 0
    # After its word that it may run the claim, only its own word counts.
    assert move(cast, claim).status == 202
    other.obey()
    machine.obey()
    lose(other)
    assert (give_up(), state(claim)) == (0, "resuming")
    assert orders(machine)[0].suspended
