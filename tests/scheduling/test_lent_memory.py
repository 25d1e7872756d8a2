"""Memory that best-effort claims borrow: who may, what it charges and takes, and what nodes are sent."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from apps.nodes.models import Node
from apps.nodes.services import capacity
from apps.nodes.services.nodes import take_hello
from apps.quotas.models import ResourceQuota
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Assignment, Claim
from apps.scheduling.services.claims import lent_memory
from apps.scheduling.services.claims.desired import desired_state
from apps.scheduling.services.claims.lifecycle import end_assignments, locked, release_claim
from apps.scheduling.services.claims.resize import resize_claim
from apps.scheduling.services.claims.sharing import change_pool
from apps.scheduling.services.claims.spec import ClaimChanges
from apps.scheduling.services.cycles.rounds import run_round
from apps.scheduling.services.reclaiming import failover
from apps.suspension.services import CannotSuspend, suspend_claim
from tests.cast import GIB, MIB_BYTES, Cast, Machine, ask, assert_books_agree, give, give_plenty, hello, lose, placed

HOST = 64 * GIB


@pytest.fixture
def machine(cast: Cast) -> Machine:
    """Create a node of two GPUs of 24 GiB with 64 GiB of its own memory, in a pool that lends memory."""
    give_plenty(cast.acme, cast.globex)
    change_pool(principal=SYSTEM, pool=cast.pool, lend_memory=True, sharing_policy="preempt")
    cast.pool.refresh_from_db()
    return Machine("gpu1", cast.pool, gpus=2, host_memory_mib=HOST).stay_online()


def borrow(cast: Cast, *, limit: int | None = 16 * GIB, **facts: Any) -> Claim:
    facts = {"memory_mib": 2 * GIB, "best_effort": True, **facts}
    return ask(cast, memory_limit_mib=limit, **facts)


def node(machine: Machine) -> Node:
    return Node.objects.get(pk=machine.node.pk)


def test_it_is_charged_and_placed_by_what_is_promised_and_the_node_keeps_memory_for_the_rest(
    cast: Cast, machine: Machine
) -> None:
    claim, row = placed(cast, machine, memory_mib=2 * GIB, memory_limit_mib=16 * GIB, best_effort=True)
    assert (claim.charged_memory_mib, claim.charged_host_memory_mib) == (2 * GIB, 14 * GIB)
    assert (machine.gpu().memory_used_mib, node(machine).host_memory_used_mib) == (2 * GIB, 14 * GIB)
    assert row.held_host_memory_mib == 14 * GIB
    assert_books_agree()
    (sent,) = desired_state(machine.node).assignments
    assert sent.memory_bytes == 16 * GIB * MIB_BYTES
    assert sent.borrowing is not None
    assert (sent.borrowing.memory_request_bytes, sent.borrowing.host_memory_bytes) == (
        2 * GIB * MIB_BYTES,
        14 * GIB * MIB_BYTES,
    )
    release_claim(principal=SYSTEM, claim=claim)
    machine.obey()
    claim.refresh_from_db()
    assert (claim.state, set(claim.charged.values()), node(machine).host_memory_used_mib) == ("released", {0}, 0)
    assert_books_agree()


def test_control_what_others_have_is_sent_as_promised(cast: Cast, machine: Machine) -> None:
    placed(cast, machine, memory_mib=2 * GIB, best_effort=True)
    (sent,) = desired_state(machine.node).assignments
    assert (sent.memory_bytes, sent.borrowing) == (2 * GIB * MIB_BYTES, None)
    assert node(machine).host_memory_used_mib == 0


def test_a_limit_above_the_gpu_is_sent_as_the_gpu_has_it(cast: Cast, machine: Machine) -> None:
    placed(cast, machine, memory_mib=2 * GIB, memory_limit_mib=60 * GIB, best_effort=True)
    (sent,) = desired_state(machine.node).assignments
    assert sent.memory_bytes == 24 * GIB * MIB_BYTES


def test_promises_fill_a_gpu_and_borrowers_fit_beside_them(cast: Cast, machine: Machine) -> None:
    for _ in range(2):
        placed(cast, machine, core_request=50, memory_mib=22 * GIB)
    claims = [borrow(cast, core_request=30) for _ in range(3)]
    run_round(cast.pool)
    states = sorted(Claim.objects.filter(pk__in=[one.pk for one in claims]).values_list("state", flat=True))
    assert states == ["assigned", "assigned", "queued"], "2 GiB are promised to each, and 24 GiB are all"
    assert_books_agree()


FAULTS: dict[str, dict[str, Any]] = {
    "Only best-effort": {"best_effort": False},
    "must be above memory_mib": {"limit": 2 * GIB},
    "too little for what cannot leave": {"memory_mib": 512},
    "cannot be suspended": {"schedule": "weekdays 09:00-18:00 UTC"},
}


@pytest.mark.parametrize("said", FAULTS)
def test_wrong_limits_are_refused_and_nothing_is_charged(cast: Cast, machine: Machine, said: str) -> None:
    with pytest.raises(lent_memory.WrongMemoryLimit, match=said):
        borrow(cast, **FAULTS[said])
    assert not Claim.objects.exists()
    assert set(ResourceQuota.objects.values_list("used", flat=True)) == {0}


@pytest.mark.parametrize(
    "facts",
    [{"lend_memory": False}, {"sharing_policy": "weighted"}, {"backend": "native"}],
    ids=["off", "policy", "kind"],
)
def test_a_pool_that_does_not_lend_refuses_it_and_says_what_to_do(
    cast: Cast, machine: Machine, facts: dict[str, Any]
) -> None:
    change_pool(principal=SYSTEM, pool=cast.pool, **facts)
    cast.pool.refresh_from_db()
    answer = cast.max.post("claims/", {"core_request": 10, "memory_mib": 2048, "memory_limit_mib": 4096, **BEST_EFFORT})
    assert (answer.status, answer.code) == (422, "wrong-memory-limit")
    assert "ask an operator to set lend_memory" in answer.body["detail"]


@pytest.mark.parametrize("change", [{"lend_memory": False}, {"sharing_policy": "weighted"}, {"backend": "native"}])
def test_a_pool_lends_as_long_as_a_claim_may_borrow(cast: Cast, machine: Machine, change: dict[str, Any]) -> None:
    claim = borrow(cast)
    answer = cast.olga.patch("pools/default/", change)
    assert (answer.status, answer.code) == (409, "memory-is-lent")
    release_claim(principal=SYSTEM, claim=claim)
    assert cast.olga.patch("pools/default/", change).status == 200


def test_a_suspended_claim_cannot_begin_to_borrow(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine, memory_mib=2 * GIB, best_effort=True)
    suspend_claim(principal=SYSTEM, claim=claim)
    machine.obey()
    with pytest.raises(lent_memory.WrongMemoryLimit, match="resume it first"):
        resize_claim(principal=SYSTEM, claim=claim, changes=ClaimChanges(memory_limit_mib=16 * GIB))


def test_memory_of_the_node_is_kept_while_a_lowered_limit_is_exceeded(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine, memory_mib=2 * GIB, memory_limit_mib=16 * GIB, best_effort=True)
    resize_claim(principal=SYSTEM, claim=claim, changes=ClaimChanges(memory_limit_mib=4 * GIB))
    machine.obey(memory_bytes=10 * GIB * MIB_BYTES)
    assert node(machine).host_memory_used_mib == 14 * GIB
    machine.obey(memory_bytes=3 * GIB * MIB_BYTES)
    assert node(machine).host_memory_used_mib == 2 * GIB
    assert_books_agree()


BEST_EFFORT = {"tenant": "acme", "class": "best-effort"}


def test_the_api_makes_and_changes_it(cast: Cast, machine: Machine) -> None:
    body = {"core_request": 10, "memory_mib": 2048, "memory_limit_mib": 4096, **BEST_EFFORT}
    made = cast.max.post("claims/", body)
    assert (made.status, made.body["memory_limit_mib"], made.body["host_memory_mib"]) == (201, 4096, 2048)
    run_round(cast.pool)
    machine.obey()
    url = f"claims/{made.body['uid']}/"
    assert cast.max.get(url).body["assignments"][0]["host_memory_mib"] == 2048
    more = cast.max.patch(url, {"memory_limit_mib": 8192}, If_Match=cast.max.get(url).headers["ETag"])
    assert (more.status, more.body["memory_limit_mib"], more.body["host_memory_mib"]) == (200, 8192, 6144)
    assert node(machine).host_memory_used_mib == 6144
    none = cast.max.patch(url, {"memory_limit_mib": None}, If_Match=cast.max.get(url).headers["ETag"])
    assert (none.status, none.body["memory_limit_mib"]) == (200, None)
    assert node(machine).host_memory_used_mib == 6144, "until the node has it in force, memory may be there"
    machine.obey()
    assert node(machine).host_memory_used_mib == 0
    assert cast.max.get(url).body["host_memory_mib"] == 0
    assert_books_agree()


def test_a_guaranteed_claim_keeps_no_limit(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine, memory_mib=2 * GIB, memory_limit_mib=16 * GIB, best_effort=True)
    with pytest.raises(lent_memory.WrongMemoryLimit):
        resize_claim(principal=SYSTEM, claim=claim, changes=ClaimChanges(best_effort=False))
    resize_claim(principal=SYSTEM, claim=claim, changes=ClaimChanges(best_effort=False, memory_limit_mib=None))
    machine.obey()
    claim.refresh_from_db()
    assert (claim.best_effort, claim.memory_limit_mib, claim.charged_host_memory_mib) == (False, None, 0)


def test_more_than_the_node_has_is_refused_live_and_nothing_changes(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine, memory_mib=2 * GIB, memory_limit_mib=16 * GIB, best_effort=True)
    with pytest.raises(lent_memory.NoHostMemoryToLend, match="Lower memory_limit_mib"):
        resize_claim(principal=SYSTEM, claim=claim, changes=ClaimChanges(memory_limit_mib=100 * GIB))
    claim.refresh_from_db()
    assert (claim.memory_limit_mib, claim.charged_host_memory_mib) == (16 * GIB, 14 * GIB)
    assert_books_agree()


def test_where_nodes_lack_memory_it_waits_and_says_so_until_there_is_some(cast: Cast, machine: Machine) -> None:
    first = borrow(cast, limit=2 * GIB + HOST, core_request=10)
    run_round(cast.pool)
    second = borrow(cast, core_request=10)
    run_round(cast.pool)
    second.refresh_from_db()
    assert (second.state, second.reasons[0]["code"], second.reasons[0]["gpus"]) == ("queued", "no-host-memory", 2)
    release_claim(principal=SYSTEM, claim=Claim.objects.get(pk=first.pk))
    machine.obey()
    run_round(cast.pool)
    second.refresh_from_db()
    assert second.state == "assigned"
    assert_books_agree()


def test_another_node_with_memory_is_chosen(cast: Cast, machine: Machine) -> None:
    assert capacity.take_host_memory(node_id=machine.node.pk, memory_mib=HOST - 1024)
    other = Machine("gpu2", cast.pool, gpus=1, host_memory_mib=HOST).stay_online()
    claim = borrow(cast)
    run_round(cast.pool)
    assert claim.assignments.get().gpu.node_id == other.node.pk


def test_a_node_with_an_older_agent_gets_none(cast: Cast, machine: Machine) -> None:
    Node.objects.filter(pk=machine.node.pk).update(lends_memory=False)
    answer = cast.max.post("claims/", {"core_request": 10, "memory_mib": 2048, "memory_limit_mib": 4096, **BEST_EFFORT})
    assert (answer.status, answer.code) == (422, "impossible-claim")
    assert "gpucloud.io/lent-memory=true" in answer.body["detail"]


def test_its_quota_of_host_memory_bounds_it(cast: Cast, machine: Machine) -> None:
    give(cast.acme, host_memory_mib=10 * GIB)
    answer = cast.max.post(
        "claims/", {"core_request": 10, "memory_mib": 2048, "memory_limit_mib": 16 * GIB, **BEST_EFFORT}
    )
    assert (answer.status, answer.code) == (409, "quota-exceeded")
    assert not Claim.objects.exists()


def test_it_cannot_be_suspended_and_the_refusal_says_what_to_do(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine, memory_mib=2 * GIB, memory_limit_mib=16 * GIB, best_effort=True)
    with pytest.raises(CannotSuspend, match="set memory_limit_mib to null"):
        suspend_claim(principal=SYSTEM, claim=claim)


def test_one_that_runs_on_lent_core_borrows_memory_too(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine, core_request=100, memory_mib=4 * GIB)
    placed(cast, machine, core_request=100, memory_mib=4 * GIB)
    Claim.objects.filter(pk=claim.pk).update(lent_core=90)
    row = claim.assignments.get()
    Assignment.objects.filter(pk=row.pk).update(lent_core=90)
    capacity.lend(gpu_id=row.gpu_id, core=90)
    one = borrow(cast, core_request=50)
    run_round(cast.pool)
    one.refresh_from_db()
    assert (one.state, one.borrowed_core) == ("assigned", 50)
    assert node(machine).host_memory_used_mib == 14 * GIB
    assert_books_agree()


def forget(cast: Cast, machine: Machine, claim: Claim) -> None:
    lose(machine)
    assert cast.olga.post("nodes/gpu1/forget/").status == 200


def fail_over(cast: Cast, machine: Machine, claim: Claim) -> None:
    change_pool(principal=SYSTEM, pool=cast.pool, failover_policy="requeue", failover_after_seconds=30)
    lose(machine)
    assert failover.drive() == 1


def preempt(cast: Cast, machine: Machine, claim: Claim) -> None:
    Claim.objects.filter(pk=claim.pk).update(preempt_at=timezone.now())
    end_assignments(locked(claim))
    machine.obey()


def shrink_the_gpu(cast: Cast, machine: Machine, claim: Claim) -> None:
    """The agent comes back without any host memory to offer, and then the claim ends."""
    take_hello(node=machine.node, hello=hello("gpu1", gpus=2, host_memory_mib=0))
    release_claim(principal=SYSTEM, claim=claim)
    machine.obey()


@pytest.mark.parametrize("end", [forget, fail_over, preempt, shrink_the_gpu])
@pytest.mark.parametrize("state", ["active", "assigned"])
def test_whatever_ends_it_the_node_has_its_memory_back(
    cast: Cast, machine: Machine, end: Callable[[Cast, Machine, Claim], None], state: str
) -> None:
    claim = borrow(cast)
    run_round(cast.pool)
    if state == "active":
        machine.obey()
    claim.refresh_from_db()
    assert (claim.state, node(machine).host_memory_used_mib) == (state, 14 * GIB)
    end(cast, machine, claim)
    assert node(machine).host_memory_used_mib == 0
    assert_books_agree()


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "control"])
def test_two_at_once_do_not_get_the_same_host_memory(
    real_cast: Cast, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two claims grow at once, and the node has memory for one of them. Control: without the condition both grow."""
    cast = real_cast
    give_plenty(cast.acme)
    change_pool(principal=SYSTEM, pool=cast.pool, lend_memory=True, sharing_policy="preempt")
    cast.pool.refresh_from_db()
    machine = Machine("gpu1", cast.pool, gpus=2, host_memory_mib=20 * GIB).stay_online()
    claims = [
        placed(cast, machine, memory_mib=2 * GIB, memory_limit_mib=8 * GIB, best_effort=True)[0] for _ in range(2)
    ]
    if not guarded:
        monkeypatch.setattr(capacity, "take_host_memory", lambda **_: True)
    begin, grown = threading.Barrier(2), []

    def grow(claim: Claim) -> None:
        begin.wait()
        try:
            resize_claim(principal=SYSTEM, claim=claim, changes=ClaimChanges(memory_limit_mib=15 * GIB))
            grown.append(claim.pk)
        except lent_memory.NoHostMemoryToLend:
            pass
        finally:
            connection.close()

    threads = [threading.Thread(target=grow, args=[claim]) for claim in claims]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(grown) == (1 if guarded else 2)
    if guarded:
        assert_books_agree()
