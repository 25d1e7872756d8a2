"""Running programs that are carried to another node: one copy runs, and memory of both nodes is charged meanwhile."""

from typing import Any

import pytest

from agent import wire
from apps.nodes.models import Node
from apps.quotas.models import AuditEvent, ResourceQuota
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Assignment, Claim
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.reclaiming import failover
from apps.scheduling.services.reclaiming.forgetting import forget_node
from apps.suspension.between.expiring import give_up
from tests.cast import GIB, MIB_BYTES, TICKET, Answer, Cast, Machine, assert_books_agree, give, lose, placed, seen, used
from tests.suspension.test_between import core, orders, state, target_of

WHY = "CRIU cannot dump the programs: Connected TCP socket."
SAVED = 3 * GIB


@pytest.fixture
def machine(cast: Cast) -> Machine:
    """Create a node that can carry. It is filled first."""
    give(cast.acme, core_percent=None, memory_mib=None, vgpus=None, gpus=None, host_memory_mib=None)
    return Machine("gpu1", cast.pool, host_memory_mib=20 * GIB, carry=True).stay_online()


@pytest.fixture
def other(cast: Cast, machine: Machine) -> Machine:
    return Machine("gpu2", cast.pool, host_memory_mib=20 * GIB, carry=True).stay_online()


@pytest.fixture
def claim(cast: Cast, machine: Machine, other: Machine) -> Claim:
    """Create an active claim on the first node."""
    found, home = placed(cast, machine, core_request=50, memory_mib=8 * GIB, movable=True)
    assert home.gpu.node == machine.node
    return found


def carry(cast: Cast, claim: Claim, query: str = "", **wanted: Any) -> Answer:
    return cast.max.post(f"claims/{claim.uid}/move/{query}", {"node": "gpu2", **wanted})


def host(machine: Machine) -> int:
    return Node.objects.get(pk=machine.node.pk).host_memory_used_mib


def charged(cast: Cast) -> int:
    return used(cast.acme)["host_memory_mib"]


def home_of(claim: Claim) -> Assignment:
    row = claim.assignments.order_by("pk").first()
    assert row is not None
    return row


def test_each_step_begins_when_the_one_before_is_done(
    cast: Cast, machine: Machine, other: Machine, claim: Claim
) -> None:
    answer = carry(cast, claim)
    assert (answer.status, answer.body["state"], answer.body["moves_by"]) == (202, "suspending", "carry"), answer.body
    assert (core(machine), core(other), host(machine), host(other)) == (50, 50, 8 * GIB, 8 * GIB)
    # The share counts once, the memory of each node for itself.
    assert {name: used(cast.acme)[name] for name in ("core_percent", "memory_mib", "vgpus")} == {
        "core_percent": 50, "memory_mib": 8 * GIB, "vgpus": 1,
    }  # fmt: skip
    assert charged(cast) == 16 * GIB
    assert_books_agree()
    # 1. The programs run until the new node offers a ticket.
    (here,), (there,) = orders(machine), orders(other)
    assert (here.suspended, here.carry) == (False, None)
    assert (there.suspended, there.carry, there.end_seconds) == (True, wire.Carry(), 0)
    # 2. The old node gets it; the new one keeps its room.
    other.obey()
    (here,), (there,) = orders(machine), orders(other)
    assert (here.suspended, here.carry, here.end_seconds) == (True, wire.Carry(ticket=TICKET), 0)
    assert (there.suspended, there.carry, host(other)) == (True, wire.Carry(), 8 * GIB)
    # 3. The old copy stands still, and the new node is told to run the programs.
    machine.obey(memory_bytes=SAVED * MIB_BYTES)
    (here,), (there,) = orders(machine), orders(other)
    assert (here.suspended, here.present, there.suspended, there.carry) == (True, True, False, wire.Carry())
    assert (state(claim), host(machine), host(other), charged(cast)) == ("resuming", SAVED, SAVED, 2 * SAVED)
    assert_books_agree()
    # 4. The old one is released last, and keeps its copy and its memory until it confirms.
    other.obey()
    (here,), (there,) = orders(machine), orders(other)
    assert (state(claim), here.present, here.carry, there.carry) == ("active", False, None, None)
    assert (host(machine), host(other), charged(cast)) == (SAVED, 0, SAVED)
    assert_books_agree()
    machine.obey()
    assert (orders(machine), core(machine), core(other), host(machine), charged(cast)) == ([], 0, 50, 0, 0)
    assert not Assignment.objects.filter(carry__isnull=False).exists()
    assert_books_agree()


def test_a_claim_that_was_carried_is_as_any_other(cast: Cast, machine: Machine, other: Machine, claim: Claim) -> None:
    carry(cast, claim)
    for node in (other, machine, other, machine):
        node.obey()
    body = cast.max.get(f"claims/{claim.uid}/").body
    assert [(item["node"], item["state"]) for item in body["assignments"]] == [("gpu2", "in_force")]
    assert (body["moves_to"], body["moves_by"], body["reasons"]) == (None, None, [])
    assert body["observed_generation"] == body["generation"]
    # It can move on.
    assert carry(cast, claim, node="gpu1").status == 202


def test_the_audit_log_and_the_timeline_have_it_and_no_secret(
    cast: Cast, machine: Machine, other: Machine, claim: Claim
) -> None:
    home = home_of(claim)
    carry(cast, claim)
    for node in (other, machine, other, machine):
        node.obey()
    order, moved = (AuditEvent.objects.get(action=name).after for name in ("claim.move", "claim.moved"))
    assert order is not None
    assert (order["node"], order["carry"], "end_seconds" in order) == ("gpu2", True, False)
    assert moved == {"moves": [{"from": home.gpu.uuid, "to": target_of(claim, home).gpu.uuid, "node": "gpu2"}]}
    assert [name for name, _ in Claim.objects.get(pk=claim.pk).timeline][-3:] == ["suspending", "resuming", "active"]
    assert TICKET.secret not in str(list(AuditEvent.objects.values()))


def test_a_preview_says_how_and_for_how_long(cast: Cast, machine: Machine, other: Machine, claim: Claim) -> None:
    body = carry(cast, claim, "?dry_run=true").body
    assert (body["moves_by"], body["pause_seconds"], body["end_seconds"], body["not_carried"]) == (
        "carry", 42, None, None,
    )  # fmt: skip
    assert [one["node"] for one in body["moves"]] == ["gpu2"]
    body = carry(cast, claim, "?dry_run=true", restart=True).body
    assert (body["moves_by"], body["pause_seconds"], body["end_seconds"]) == ("restart", None, 60)
    Node.objects.filter(pk=other.node.pk).update(can_carry=False, checks=[NOT_WANTED])
    body = carry(cast, claim, "?dry_run=true", restart=True).body
    assert "GPUCLOUD_CARRY" in body["not_carried"]
    assert (state(claim), core(other), host(other), charged(cast)) == ("active", 0, 0, 0)


NOT_WANTED = {"name": "carry", "state": "ok", "detail": "not wanted: GPUCLOUD_CARRY is not set", "cure": None}
NO_CRIU = {
    "name": "carry", "state": "warning", "cure": "Install criu 4.",
    "detail": "running programs cannot be carried to other nodes: CRIU is not installed",
}  # fmt: skip


@pytest.mark.parametrize(
    ("which", "checks", "words"),
    [
        ("gpu2", [NOT_WANTED], "Node gpu2 does not carry running programs"),
        ("gpu1", [NOT_WANTED], "Node gpu1 does not carry running programs"),
        ("gpu2", [NO_CRIU], "Node gpu2: running programs cannot be carried to other nodes: CRIU is not installed"),
        ("gpu2", [], "The agent of node gpu2 is too old to carry"),
        ("gpu2", [{**NOT_WANTED, "detail": "a program was dumped and restored"}], "GPU driver of node gpu2"),
    ],
)
def test_a_node_that_cannot_carry_is_named_with_what_to_do(
    cast: Cast, claim: Claim, which: str, checks: list[dict[str, Any]], words: str
) -> None:
    Node.objects.filter(name=which).update(can_carry=False, checks=checks)
    for wanted in ({}, {"node": None, "anywhere": True}):
        body = {name: value for name, value in {"node": "gpu2", **wanted}.items() if value}
        answer = cast.max.post(f"claims/{claim.uid}/move/", body)
        assert (answer.status, answer.code, answer.body["of"]) == (409, "cannot-move", "restart")
        assert words in answer.body["detail"]
        assert "SIGUSR1" in answer.body["detail"]
    # What can be done instead.
    assert carry(cast, claim, restart=True).status == 202


def test_the_policy_chooses_a_node_that_can_carry(cast: Cast, machine: Machine, other: Machine, claim: Claim) -> None:
    Machine("gpu3", cast.pool, host_memory_mib=20 * GIB, carry=True).stay_online()
    Node.objects.filter(pk=other.node.pk).update(can_carry=False)
    assert cast.max.post(f"claims/{claim.uid}/move/", {"anywhere": True}).body["moves_to"] == "gpu3"


@pytest.mark.parametrize("which", ["gpu1", "gpu2"])
def test_memory_of_both_nodes_is_needed(cast: Cast, other: Machine, claim: Claim, which: str) -> None:
    Node.objects.filter(name=which).update(host_memory_mib=8 * GIB - 1)
    answer = carry(cast, claim)
    assert (answer.status, answer.code, answer.body["node"]) == (409, "no-host-memory", which)
    assert (core(other), charged(cast), state(claim)) == (0, 0, "active")
    assert_books_agree()


def test_the_quota_has_to_allow_the_memory_of_both(cast: Cast, other: Machine, claim: Claim) -> None:
    quota = ResourceQuota.objects.filter(tenant=cast.acme, resource="host_memory_mib")
    quota.update(hard=16 * GIB - 1)
    assert carry(cast, claim).code == "quota-exceeded"
    assert (core(other), host(other)) == (0, 0)
    quota.update(hard=16 * GIB)
    assert carry(cast, claim).status == 202


def test_what_does_not_end_has_no_time_to_end(cast: Cast, claim: Claim) -> None:
    assert carry(cast, claim, end_seconds=9).status == 400


def back_at_home(cast: Cast, machine: Machine, other: Machine, claim: Claim) -> None:
    """Let both nodes do what they are told; the claim is at home with nothing charged beside its share."""
    for node in (other, machine) * 3:
        node.obey()
    assert (state(claim), core(machine), core(other)) == ("active", 50, 0)
    assert (host(machine), host(other), charged(cast)) == (0, 0, 0)
    assert not Assignment.objects.filter(carry__isnull=False).exists()
    assert_books_agree()


def test_a_program_that_cannot_be_dumped_stays(cast: Cast, machine: Machine, other: Machine, claim: Claim) -> None:
    carry(cast, claim)
    other.obey()
    machine.say(seen(home_of(claim), "resuming", suspend_refused=WHY))
    (here,), (there,) = orders(machine), orders(other)
    assert (here.suspended, here.carry, there.present) == (False, None, False)
    reason = Claim.objects.get(pk=claim.pk).reasons[0]
    assert (reason["code"], reason["detail"]) == ("carry-refused", WHY)
    back_at_home(cast, machine, other, claim)


def test_what_cannot_be_restored_goes_on_at_home_once_the_new_node_has_nothing(
    cast: Cast, machine: Machine, other: Machine, claim: Claim
) -> None:
    carry(cast, claim)
    other.obey()
    machine.obey()
    other.say(seen(target_of(claim, home_of(claim)), "suspended", suspend_refused="CRIU cannot restore the programs."))
    (here,), (there,) = orders(machine), orders(other)
    assert (here.suspended, there.present, state(claim)) == (True, False, "resuming")
    machine.obey()
    assert orders(machine)[0].suspended
    other.obey()
    (here,) = orders(machine)
    assert (here.suspended, here.carry) == (False, None)
    back_at_home(cast, machine, other, claim)


def test_a_home_that_cannot_resume_them_keeps_them_suspended(
    cast: Cast, machine: Machine, other: Machine, claim: Claim
) -> None:
    carry(cast, claim)
    other.obey()
    machine.obey(memory_bytes=SAVED * MIB_BYTES)
    other.say(seen(target_of(claim, home_of(claim)), "suspended", suspend_refused="CRIU cannot restore the programs."))
    other.obey()
    refusal = seen(home_of(claim), "suspended", suspend_refused="GPU-0 has no room.", saved_bytes=SAVED * MIB_BYTES)
    machine.say(refusal)
    fresh = Claim.objects.get(pk=claim.pk)
    assert fresh.reasons[0]["code"] == "resume-refused"
    machine.obey(memory_bytes=SAVED * MIB_BYTES)
    assert (state(claim), core(machine), host(machine), charged(cast)) == ("suspended", 0, SAVED, SAVED)
    assert_books_agree()


def test_a_new_agent_that_began_anew_before_the_programs_came_offers_nothing(
    cast: Cast, machine: Machine, other: Machine, claim: Claim
) -> None:
    carry(cast, claim)
    other.say(seen(target_of(claim, home_of(claim)), "suspended"))
    assert "began anew" in Claim.objects.get(pk=claim.pk).reasons[0]["detail"]
    back_at_home(cast, machine, other, claim)


def test_the_old_node_gets_the_first_ticket_only(cast: Cast, machine: Machine, other: Machine, claim: Claim) -> None:
    carry(cast, claim)
    other.obey()
    later = wire.Ticket(host="10.0.0.2", port=7001, fingerprint="1" * 64, secret="t" * 43)
    other.say(seen(target_of(claim, home_of(claim)), "suspended", ticket=later))
    assert orders(machine)[0].carry == wire.Carry(ticket=TICKET)


def test_a_silent_new_node_is_given_up_before_it_may_run_them(
    cast: Cast, machine: Machine, other: Machine, claim: Claim
) -> None:
    carry(cast, claim)
    other.obey()
    lose(other)
    assert give_up() == 1
    machine.obey()
    assert (state(claim), host(machine), host(other)) == ("active", 0, 8 * GIB)
    other.stay_online()
    back_at_home(cast, machine, other, claim)
    carry(cast, claim)
    other.obey()
    machine.obey()
    lose(other)
    assert (give_up(), state(claim)) == (0, "resuming")


@pytest.mark.parametrize("step", range(5))
def test_a_release_ends_it_from_every_step(
    cast: Cast, machine: Machine, other: Machine, claim: Claim, step: int
) -> None:
    carry(cast, claim)
    for node in (other, machine, other, machine)[:step]:
        node.obey()
    release_claim(principal=SYSTEM, claim=claim)
    machine.obey()
    other.obey()
    assert (state(claim), core(machine), core(other), host(machine), host(other)) == ("released", 0, 0, 0, 0)
    assert set(used(cast.acme).values()) == {0}
    assert_books_agree()


@pytest.mark.parametrize("step", range(3))
def test_a_forgotten_new_node_leaves_the_claim_at_its_old_one(
    cast: Cast, machine: Machine, other: Machine, claim: Claim, step: int
) -> None:
    carry(cast, claim)
    for node in (other, machine)[:step]:
        node.obey()
    lose(other)
    forget_node(principal=SYSTEM, node=Node.objects.get(pk=other.node.pk))
    back_at_home(cast, machine, other, claim)


@pytest.mark.parametrize("fate", [*(("forgotten", step) for step in range(4)), ("lost", 2), ("lost", 3)])
def test_an_old_node_that_is_gone_takes_along_only_what_has_not_left(
    cast: Cast, machine: Machine, other: Machine, claim: Claim, fate: tuple[str, int]
) -> None:
    end, step = fate
    carry(cast, claim)
    for node in (other, machine, other)[:step]:
        node.obey()
    lose(machine)
    if end == "forgotten":
        forget_node(principal=SYSTEM, node=Node.objects.get(pk=machine.node.pk))
    else:
        cast.pool.change(failover_policy="release", failover_after_seconds=10)
        assert failover.drive() == (step == 2)
    # Of a carry, the new node restores what came.
    assert [one.carry for one in orders(other) if one.present] == (
        [wire.Carry()] if step == 2 else [None] * (step == 3)
    )
    other.obey()
    other.obey()
    # Programs that have come to the new node go on there.
    arrived = step >= 2
    assert state(claim) == ("active" if arrived else "released")
    assert (core(other), host(other)) == (50 if arrived else 0, 0)
    if (end, step) != ("lost", 3):
        assert (core(machine), host(machine), charged(cast)) == (0, 0, 0)
    assert not Assignment.objects.live().filter(carry__isnull=False).exists()
    assert_books_agree()
