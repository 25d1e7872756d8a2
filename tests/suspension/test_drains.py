"""Drains and suspension: claims are suspended until their node is uncordoned, and suspended ones end no drain late."""

from typing import Any

import pytest
from django.urls import reverse
from django.utils import timezone

from apps.nodes.models import Node
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim
from apps.scheduling.services.cycles.rounds import run_round
from apps.scheduling.services.reclaiming import draining
from apps.suspension.services import suspend_claim
from tests.cast import Answer, Cast, Machine, assert_books_agree, placed, seen
from tests.suspension.test_pages import browser
from tests.suspension.test_suspending import resume, suspended

__all__ = ["browser"]


def drain(cast: Cast, query: str = "", **asked: Any) -> Answer:
    return cast.olga.post(f"nodes/gpu1/drain/{query}", {"mode": "suspend", "grace_seconds": 60, **asked})


def uncordon(cast: Cast) -> None:
    assert cast.olga.patch("nodes/gpu1/", {"cordoned": False}).status == 200


def turn(*, grace_is_over: bool = False) -> int:
    """Run one run of draining, with live nodes."""
    Node.objects.update(last_seen_at=timezone.now())
    if grace_is_over:
        Claim.objects.filter(preempt_at__isnull=False).update(preempt_at=timezone.now())
    return draining.drive()


def fresh(claim: Claim) -> Claim:
    claim.refresh_from_db()
    return claim


def drained(cast: Cast, machine: Machine, **asked: Any) -> Claim:
    """Create a claim that a drain has suspended."""
    claim, _ = placed(cast, machine, **asked)
    assert drain(cast).status == 200
    turn()
    assert "it is suspended until the node takes claims again" in fresh(claim).reasons[0]["detail"]
    turn(grace_is_over=True)
    assert fresh(claim).state == "suspending"
    machine.obey()
    assert (fresh(claim).state, claim.suspended_by, claim.preempt_at) == ("suspended", "drain", None)
    return claim


def progress(machine: Machine) -> str:
    node = Node.objects.get(pk=machine.node.pk)
    draining.attach_progress([node])
    return str(node.drain_progress)


def test_claims_are_suspended_until_the_node_is_uncordoned_and_then_resume_by_themselves(
    cast: Cast, machine: Machine
) -> None:
    claim = drained(cast, machine)
    assert machine.gpu().core_used == 0
    assert turn() == 0, "the node is still cordoned"
    uncordon(cast)
    assert turn() == 1
    assert fresh(claim).state == "resuming"
    run_round(cast.pool)
    machine.obey()
    assert (fresh(claim).state, claim.suspended_by) == ("active", "")
    assert cast.olga.get("nodes/gpu1/").body["state"] == "ready"
    assert_books_agree()


def test_a_drain_is_done_when_nothing_holds_a_gpu(cast: Cast, machine: Machine) -> None:
    before = suspended(cast, machine)
    claim, _ = placed(cast, machine)
    drain(cast)
    assert progress(machine) == "0/1", "what was suspended before has nothing to leave"
    turn()
    turn(grace_is_over=True)
    assert progress(machine) == "0/1", "its programs are still there"
    machine.obey()
    assert progress(machine) == "1/1"
    assert (fresh(before).suspended_by, fresh(claim).suspended_by) == ("owner", "drain")


def test_only_what_the_drain_suspended_resumes_after_it(cast: Cast, machine: Machine) -> None:
    mine = suspended(cast, machine)
    taken = drained(cast, machine)
    suspend_claim(principal=SYSTEM, claim=taken)
    uncordon(cast)
    assert turn() == 0
    assert [fresh(claim).state for claim in (mine, taken)] == ["suspended", "suspended"]


def test_a_claim_that_cannot_be_suspended_is_moved_and_says_why(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine, gpu_count=3)
    drain(cast)
    turn()
    assert (
        "it goes back to the queue, as it cannot be suspended. Host memory of node gpu1"
        in (fresh(claim).reasons[0]["detail"])
    )
    turn(grace_is_over=True)
    assert fresh(claim).state == "releasing"
    assert "as it could not be suspended. Host memory of node gpu1" in claim.reasons[0]["detail"]
    assert claim.charged["host_memory_mib"] == 0


def test_a_claim_that_its_node_refuses_to_suspend_is_moved_and_not_tried_again(cast: Cast, machine: Machine) -> None:
    claim, assignment = placed(cast, machine)
    drain(cast)
    turn()
    turn(grace_is_over=True)
    machine.say(seen(assignment, suspend_refused="Process 17 uses managed memory: end it."))
    assert (fresh(claim).state, claim.reasons[0]["code"]) == ("active", "suspend-refused")
    turn(grace_is_over=True)
    assert fresh(claim).state == "releasing"
    assert "Process 17 uses managed memory" in claim.reasons[0]["detail"]


def test_a_refused_resumption_is_not_tried_again(cast: Cast, machine: Machine) -> None:
    claim = drained(cast, machine)
    uncordon(cast)
    turn()
    run_round(cast.pool)
    machine.say(seen(claim.assignments.get(), "suspended", suspend_refused="No room on GPU 0."))
    assert fresh(claim).state == "suspended"
    assert turn() == 0
    assert resume(cast, claim).body["state"] == "resuming"


def test_the_preview_says_what_is_suspended_and_what_moves(cast: Cast, machine: Machine) -> None:
    claims = [placed(cast, machine)[0] for _ in range(3)]
    mine = suspended(cast, machine, saved_mib=1)
    shown = drain(cast, "?dry_run=true").body
    assert shown["mode"] == "suspend"
    assert [item["claim"] for item in shown["suspends"]] == [str(claim.uid) for claim in claims[:2]]
    (move,) = shown["moves"]
    assert move["claim"] == str(claims[2].uid)
    assert "requested 8 GiB, 4095 MiB of 20 GiB available" in move["cannot_suspend"]
    assert [(item["claim"], item["suspended"]) for item in shown["stays"]] == [(str(mine.uid), True)]
    assert cast.olga.get("nodes/gpu1/").body["state"] == "ready"
    moves = cast.olga.post("nodes/gpu1/drain/?dry_run=true", {}).body
    assert (len(moves["moves"]), moves["suspends"], moves["moves"][0]["cannot_suspend"]) == (3, [], None)


def test_the_page_previews_and_drains(cast: Cast, machine: Machine, browser: Any) -> None:
    placed(cast, machine)
    suspended(cast, machine)
    olga, url = browser("olga"), reverse("drain", args=["gpu1"])
    asked = {"mode": "suspend", "grace_seconds": "60", "version": Node.objects.get().version}
    page = " ".join(olga.post(url, {**asked, "act": "preview"}).content.decode().split())
    assert "1 claim gets notice now and is suspended" in page
    assert "is suspended and stays: it holds no GPU." in page
    assert olga.post(url, asked).status_code == 302
    node = Node.objects.get()
    assert (node.drain_mode, node.cordoned) == ("suspend", True)


@pytest.mark.parametrize("mode", ["", "release"])
def test_a_mode_that_is_none_is_refused(cast: Cast, machine: Machine, mode: str) -> None:
    assert drain(cast, mode=mode).status == 400
