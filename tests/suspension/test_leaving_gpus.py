"""Moves that the platform orders: away from unhealthy GPUs, and those of a consolidation that an operator accepts."""

from typing import Any

import pytest

from apps.nodes.models import Gpu, Node
from apps.quotas.models import AuditEvent
from apps.scheduling.models import Claim
from apps.suspension import evacuating
from tests.cast import Cast, Machine, assert_books_agree, placed, seen

pytestmark = pytest.mark.django_db
SICK = "xid 79"


def fall_ill(machine: Machine, index: int = 0, words: str = SICK) -> None:
    Gpu.objects.filter(node=machine.node, index=index).update(unhealthy=words)


def place(claim: Claim) -> list[int]:
    claim.refresh_from_db()
    return list(claim.assignments.live().order_by("pk").values_list("gpu__index", flat=True))


def finish(machine: Machine) -> None:
    machine.obey()
    machine.obey()


def test_a_claim_is_moved_away_from_a_gpu_that_falls_ill(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine, core_request=50)
    other, _ = placed(cast, machine, core_request=100, name="other")
    fall_ill(machine)
    assert evacuating.drive() == 1
    assert evacuating.drive() == 0, "it is under way"
    finish(machine)
    assert (place(claim), claim.state, claim.reasons) == ([2], "active", [])
    assert place(other) == [1]
    assert AuditEvent.objects.filter(action="claim.move").count() == 1
    assert evacuating.drive() == 0
    assert_books_agree()


def test_one_that_cannot_be_moved_says_why_until_the_gpu_is_well(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine)
    Node.objects.update(can_move=False)
    fall_ill(machine)
    assert evacuating.drive() == 1
    assert place(claim) == [0]
    (reason,) = cast.max.get(f"claims/{claim.uid}/").body["reasons"]
    assert reason["code"] == "gpu-unhealthy"
    assert reason["detail"].startswith("GPU 0 is unhealthy (xid 79), and the claim cannot be moved. Node gpu1 cannot")
    version = Claim.objects.get(pk=claim.pk).version
    assert evacuating.drive() == 0
    assert Claim.objects.get(pk=claim.pk).version == version, "the same is not written again"
    fall_ill(machine, words="")
    assert evacuating.drive() == 1
    assert place(claim) == [0]
    assert claim.reasons == []
    assert_books_agree()


def test_it_is_moved_once_there_is_room(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine, core_request=100)
    for index in (1, 2, 3):
        fall_ill(machine, index)
    fall_ill(machine)
    evacuating.drive()
    assert "No other GPUs of node gpu1" in Claim.objects.get(pk=claim.pk).reasons[0]["detail"]
    fall_ill(machine, 3, "")
    assert evacuating.drive() == 1
    finish(machine)
    assert (place(claim), claim.reasons) == ([3], [])


def test_a_refusal_of_the_node_is_not_tried_again(cast: Cast, machine: Machine) -> None:
    claim, assignment = placed(cast, machine)
    fall_ill(machine)
    evacuating.drive()
    machine.say(seen(assignment, "in_force", suspend_refused="It uses managed memory."))
    assert evacuating.drive() == 0
    assert place(claim) == [0]
    assert claim.reasons[0]["code"] == "move-refused"


@pytest.mark.parametrize("facts", [{"rebalance": False}, {"preempt_at": "2027-01-01T00:00Z"}])
def test_claims_that_others_decide_about_are_left_alone(cast: Cast, machine: Machine, facts: dict[str, Any]) -> None:
    claim, _ = placed(cast, machine)
    Claim.objects.update(**facts)
    fall_ill(machine)
    assert evacuating.drive() == 0
    assert place(claim) == [0]


def test_an_operator_accepts_the_moves_of_a_plan(cast: Cast, machine: Machine) -> None:
    first, _ = placed(cast, machine, core_request=40)
    Gpu.objects.filter(index=0).update(cordoned=True)
    second, _ = placed(cast, machine, core_request=40, name="second")
    Gpu.objects.update(cordoned=False)
    plan = cast.olga.get("pools/default/consolidation/").body["plans"][0]
    assert len(plan["moves"]) == 1
    moves = [{"claim": item["claim"], "to_gpus": item["to_gpus"]} for item in plan["moves"]]
    assert cast.anna.post("pools/default/consolidation/accept/", {"moves": moves}).status == 403
    answer = cast.olga.post("pools/default/consolidation/accept/", {"moves": moves})
    assert answer.status == 200, answer.body
    assert answer.body["moves"] == [{**moves[0], "state": "moving", "refusal": None}]
    finish(machine)
    assert place(first) == place(second)
    assert cast.olga.get("pools/default/consolidation/").body["plans"] == []
    assert_books_agree()


def test_a_move_that_is_refused_says_why_and_leaves_the_others(cast: Cast, machine: Machine) -> None:
    Machine("gpu2", cast.pool, gpus=1).stay_online()
    claim, _ = placed(cast, machine, core_request=40)
    owned, _ = placed(cast, machine, core_request=40, name="owned", rebalance=False)
    elsewhere = Gpu.objects.get(node__name="gpu2").uuid
    nobody = "00000000-0000-0000-0000-000000000000"
    there = machine.gpu(2).uuid
    moves = [
        {"claim": nobody, "to_gpus": [there]},
        {"claim": str(claim.uid), "to_gpus": [elsewhere]},
        {"claim": str(owned.uid), "to_gpus": [there]},
        {"claim": str(claim.uid), "to_gpus": [there]},
    ]
    body = cast.olga.post("pools/default/consolidation/accept/", {"moves": moves}).body
    assert [item["state"] for item in body["moves"]] == ["refused", "refused", "refused", "moving"]
    words = [item["refusal"] or "" for item in body["moves"]]
    assert "has no claim" in words[0]
    assert f"Node gpu1 has no {elsewhere}" in words[1]
    assert "`rebalance` false" in words[2]
    finish(machine)
    assert place(claim) == [2]
    after = AuditEvent.objects.get(action="pool.consolidate").after
    assert after == {"moves": 4, "ordered": 1}
    assert_books_agree()
