"""Drains with mode `move`: movable claims restart on other nodes, the others are suspended or queued again."""

from typing import Any

import pytest

from apps.nodes.models import Node
from apps.scheduling.models import Claim
from apps.scheduling.services.reclaiming import draining, preemption
from tests.cast import GIB, Answer, Cast, Machine, assert_books_agree, seen
from tests.suspension.test_between import core, movable, orders, other, target_of
from tests.suspension.test_drains import fresh, turn

__all__ = ["other"]


def drain(cast: Cast, query: str = "", **asked: Any) -> Answer:
    return cast.olga.post(f"nodes/gpu1/drain/{query}", {"mode": "move", "grace_seconds": 60, **asked})


def carried(cast: Cast, machine: Machine, other: Machine) -> Claim:
    """Create a movable claim that a drain has ordered to move, after its notice."""
    claim, _ = movable(cast, machine)
    assert drain(cast).status == 200
    turn()
    assert (
        "its programs save their state, end, and may start again on another node" in fresh(claim).reasons[0]["detail"]
    )
    assert fresh(claim).state == "active"
    turn(grace_is_over=True)
    assert (fresh(claim).state, claim.moves_to) == ("suspending", "gpu2")
    return claim


def test_a_movable_claim_restarts_on_another_node(cast: Cast, machine: Machine, other: Machine) -> None:
    claim = carried(cast, machine, other)
    for node in (other, machine, other, machine):
        turn()
        node.obey()
    assert (fresh(claim).state, core(machine), core(other)) == ("active", 0, 50)
    preemption.drive()
    assert (fresh(claim).preempt_at, claim.reasons) == (None, [])
    left = Node.objects.get(name="gpu1")
    draining.attach_progress([left])
    assert str(left.drain_progress) == "1/1"
    assert turn() == 0
    assert_books_agree()


def test_what_a_node_refuses_to_move_is_suspended_and_not_tried_again(
    cast: Cast, machine: Machine, other: Machine
) -> None:
    claim = carried(cast, machine, other)
    home = claim.assignments.get(gpu__node=machine.node)
    other.say(seen(target_of(claim, home), "failed", reason="GPU-1 is not on this node."))
    for node in (other, machine):
        node.obey()
    assert (fresh(claim).state, claim.reasons[0]["code"]) == ("active", "move-refused")
    turn()
    assert (fresh(claim).state, claim.suspended_by) == ("suspending", "drain")
    assert orders(other) == []
    assert_books_agree()


def test_what_cannot_move_is_suspended_and_says_why(cast: Cast, machine: Machine, other: Machine) -> None:
    claim, _ = movable(cast, machine)
    Claim.objects.update(movable=False)
    drain(cast)
    turn()
    words = fresh(claim).reasons[0]["detail"]
    assert "it is suspended until the node takes claims again. It cannot move: It is not declared movable" in words
    turn(grace_is_over=True)
    assert (fresh(claim).state, claim.suspended_by) == ("suspending", "drain")


def test_without_room_elsewhere_it_is_suspended(cast: Cast, machine: Machine) -> None:
    claim, _ = movable(cast, machine)
    drain(cast)
    turn()
    turn(grace_is_over=True)
    assert (fresh(claim).state, claim.suspended_by) == ("suspending", "drain")


def test_what_can_neither_move_nor_be_suspended_is_queued_again(cast: Cast, machine: Machine, other: Machine) -> None:
    claim, _ = movable(cast, machine)
    Claim.objects.update(movable=False)
    Node.objects.update(can_suspend=False)
    drain(cast)
    turn()
    words = fresh(claim).reasons[0]["detail"]
    assert "it goes back to the queue, as it cannot be suspended. Node gpu1 cannot suspend programs" in words
    assert "It cannot move: It is not declared movable" in words
    turn(grace_is_over=True)
    assert fresh(claim).state == "releasing"


def test_the_preview_says_what_restarts_where_and_what_is_suspended(
    cast: Cast, machine: Machine, other: Machine
) -> None:
    goes, _ = movable(cast, machine)
    stays, _ = movable(cast, machine)
    Claim.objects.filter(pk=stays.pk).update(movable=False)
    shown = drain(cast, "?dry_run=true").body
    (move,) = shown["moves"]
    assert (move["claim"], move["to"], move["restarts"]) == (str(goes.uid), "gpu2", True)
    assert [one["claim"] for one in shown["suspends"]] == [str(stays.uid)]
    shown = cast.olga.post("nodes/gpu1/drain/?dry_run=true", {}).body
    assert (shown["mode"], [one["restarts"] for one in shown["moves"]]) == ("requeue", [False, False])


@pytest.mark.parametrize(("rooms", "suspended"), [(16, 2), (8, 1)])
def test_notices_count_the_host_memory_of_all_together(
    cast: Cast, machine: Machine, rooms: int, suspended: int
) -> None:
    claims = [movable(cast, machine)[0] for _ in range(2)]
    Node.objects.update(host_memory_mib=rooms * GIB)
    drain(cast, mode="suspend")
    turn()
    words = [fresh(claim).reasons[0]["detail"] for claim in claims]
    assert sum("it is suspended until" in word for word in words) == suspended
