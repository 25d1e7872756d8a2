"""Agents' conditions of nodes and GPUs: stored, shown, and respected by placement."""

from typing import Any

import msgspec

from agent import wire
from apps.console.overview import attention
from apps.console.overview.fleet_map import read_fleet_map
from apps.nodes.models import Condition, Gpu
from apps.quotas.models import AuditEvent
from apps.quotas.principals import SYSTEM
from apps.quotas.services import tenants
from apps.scheduling.gateway import Gateway
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.desired import desired_state
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import Cast, Machine, ask, gpu_uuid, placed
from tests.pages.conftest import SignIn


def bad(kind: str, reason: str, *, gpu: int | None = None, at: float = 100.0, **facts: Any) -> wire.Condition:
    uuid = gpu_uuid("gpu1", gpu) if gpu is not None else None
    facts = {"unschedulable": True, "message": f"{reason} it is.", **facts}
    return wire.Condition(type=kind, status="False", reason=reason, since=at, gpu_uuid=uuid, **facts)


def good(kind: str, *, gpu: int | None = None, at: float = 200.0) -> wire.Condition:
    uuid = gpu_uuid("gpu1", gpu) if gpu is not None else None
    return wire.Condition(type=kind, status="True", reason="AllWell", since=at, gpu_uuid=uuid)


def say(machine: Machine, *conditions: wire.Condition) -> None:
    Gateway().conditions(machine.node, wire.Conditions(conditions=list(conditions)))


def test_a_sick_gpu_takes_no_new_claims_and_the_refusal_says_what_ails_it(cast: Cast, machine: Machine) -> None:
    say(machine, bad("NoXidErrors", "Xid79", gpu=0))
    claims = [ask(cast, core_request=100) for _ in range(4)]
    run_round(cast.pool)
    assert sorted(Claim.objects.filter(state="assigned").values_list("pk", flat=True)) == [one.pk for one in claims[:3]]
    assert not Gpu.objects.get(uuid=gpu_uuid("gpu1", 0)).assignments.exists()
    reasons = Claim.objects.get(pk=claims[3].pk).reasons
    assert {"code": "gpu-unhealthy", "gpus": 1, "detail": "1 GPU is unhealthy (XID 79)"} in reasons
    assert sum(reason["gpus"] for reason in reasons) == 4
    # Healthy again: the next round places it.
    say(machine, good("NoXidErrors", gpu=0))
    run_round(cast.pool)
    assert Claim.objects.get(pk=claims[3].pk).state == "assigned"


def test_a_sick_node_keeps_claims_off_all_its_gpus(cast: Cast, machine: Machine) -> None:
    say(machine, bad("LibraryPresent", "LibraryMissing"))
    claim = ask(cast)
    run_round(cast.pool)
    claim.refresh_from_db()
    assert [reason["detail"] for reason in claim.reasons] == ["4 GPUs are unhealthy (LibraryMissing)"]
    answer = cast.olga.get("nodes/gpu1/").body
    assert (answer["state"], answer["unhealthy"]) == ("unhealthy", "LibraryMissing")


def test_a_condition_that_only_warns_keeps_nobody_off(cast: Cast, machine: Machine) -> None:
    say(machine, bad("ClockInSync", "ClockAhead", unschedulable=False))
    claim = ask(cast)
    run_round(cast.pool)
    claim.refresh_from_db()
    assert claim.state == "assigned"
    assert cast.olga.get("nodes/gpu1/").body["state"] == "ready"


def test_running_claims_are_left_and_their_owners_told(cast: Cast, machine: Machine) -> None:
    claim, assignment = placed(cast, machine)
    say(machine, bad("MemoryHealthy", "RemapPending", gpu=assignment.gpu.index))
    claim.refresh_from_db()
    assert claim.state == "active"
    seen = cast.max.get(f"claims/{claim.uid}/").body["assignments"][0]
    assert seen["gpu_unhealthy"] == "RemapPending"
    say(machine, good("MemoryHealthy", gpu=assignment.gpu.index))
    rows = AuditEvent.objects.filter(object_type="claim", object_id=str(claim.uid), action__startswith="claim.gpu_")
    assert [(row.action, row.tenant) for row in rows.order_by("pk")] == [
        ("claim.gpu_unhealthy", cast.acme),
        ("claim.gpu_recovered", cast.acme),
    ]


def test_the_same_again_is_no_news(cast: Cast, machine: Machine) -> None:
    for _ in range(3):
        say(machine, bad("NoXidErrors", "Xid79", gpu=0), good("DriverHealthy"))
    version = machine.gpu().version
    say(machine, bad("NoXidErrors", "Xid79", gpu=0), good("DriverHealthy"))
    assert machine.gpu().version == version
    assert AuditEvent.objects.filter(action="node.condition").count() == 1


def test_what_is_no_longer_told_is_forgotten(cast: Cast, machine: Machine) -> None:
    say(machine, bad("NoXidErrors", "Xid79", gpu=0), bad("DiskSpace", "DiskFull"))
    say(machine)
    assert not Condition.objects.exists()
    assert machine.gpu().unhealthy == ""


def test_a_node_says_nothing_of_anothers_gpu(cast: Cast, machine: Machine) -> None:
    other = Machine("gpu2", cast.pool)
    Gateway().conditions(other.node, wire.Conditions(conditions=[bad("NoXidErrors", "Xid79", gpu=0)]))
    assert machine.gpu().unhealthy == ""


def test_conditions_are_shown_ready_first(cast: Cast, machine: Machine, browser: SignIn) -> None:
    say(machine, bad("NoXidErrors", "Xid79", gpu=1), good("DriverHealthy"))
    node = cast.vera.get("nodes/gpu1/").body
    assert [(row["type"], row["status"]) for row in node["conditions"]] == [
        ("Ready", "True"),
        ("DriverHealthy", "True"),
    ]
    gpu = cast.vera.get(f"gpus/{gpu_uuid('gpu1', 1)}/").body
    assert (gpu["unhealthy"], gpu["conditions"][0]["reason"]) == ("XID 79", "Xid79")
    olga = browser("olga")
    text = olga.get("/nodes/gpu1/").content.decode()
    assert "Xid79 it is." in text
    assert "DriverHealthy" in text
    assert "GPU 1 of gpu1 is unhealthy" in olga.get("/").content.decode()


def excess(at: float = 100.0) -> wire.Condition:
    return bad("ProcessesLimited", "ProcessUnlimited", at=at, unschedulable=False, message="Process 7 is unlimited.")


def test_a_pool_that_fences_keeps_claims_off_until_an_operator_lifts_the_fence(
    cast: Cast, machine: Machine, browser: SignIn
) -> None:
    say(machine, excess())
    assert cast.olga.get("nodes/gpu1/").body["state"] == "ready"
    cast.olga.patch("pools/default/", {"audit_policy": "fence"})
    assert desired_state(machine.node).policy == wire.NodePolicy(audit="fence")
    say(machine, excess())
    fenced = cast.olga.get("nodes/gpu1/").body
    assert (fenced["state"], fenced["fenced_why"]) == ("fenced", "Process 7 is unlimited.")
    notices = [(notice.title, notice.detail) for notice in attention.notices(SYSTEM, read_fleet_map(SYSTEM))]
    assert notices == [
        ("Node gpu1 is fenced", "Process 7 is unlimited. It takes no new claims until the fence is lifted.")
    ]
    claim = ask(cast)
    run_round(cast.pool)
    claim.refresh_from_db()
    assert [reason["detail"] for reason in claim.reasons] == ["4 GPUs are unhealthy (its node is fenced)"]
    assert cast.anna.post("nodes/gpu1/lift-fence/").status == 403
    assert cast.olga.post("nodes/gpu1/lift-fence/").body["state"] == "ready"
    # An earlier report does not fence it again; a later one does.
    say(machine, excess())
    assert cast.olga.get("nodes/gpu1/").body["state"] == "ready"
    run_round(cast.pool)
    claim.refresh_from_db()
    assert claim.state == "assigned"
    say(machine, excess(at=101.0))
    olga = browser("olga")
    assert "Lift the fence" in olga.get("/nodes/gpu1/").content.decode()
    assert olga.post("/nodes/gpu1/unfence/", follow=True).status_code == 200
    assert cast.olga.get("nodes/gpu1/").body["state"] == "ready"
    actions = AuditEvent.objects.filter(action__in=["node.fence", "node.lift_fence"]).order_by("pk")
    assert [row.action for row in actions] == ["node.fence", "node.lift_fence"] * 2


def test_an_operator_clears_a_gpu_and_its_agent_hears_of_it(cast: Cast, machine: Machine, browser: SignIn) -> None:
    assert cast.olga.post(f"gpus/{gpu_uuid('gpu1', 1)}/clear/").status == 200
    assert desired_state(machine.node).policy is msgspec.UNSET
    say(machine, bad("NoXidErrors", "Xid79", gpu=1, at=123.5))
    machine.node.refresh_from_db()
    frame = machine.node.frame
    assert cast.anna.post(f"gpus/{gpu_uuid('gpu1', 1)}/clear/").status == 403
    olga = browser("olga")
    assert "Clear error" in olga.get("/nodes/gpu1/").content.decode()
    assert olga.post(f"/gpus/{gpu_uuid('gpu1', 1)}/clear/", follow=True).status_code == 200
    machine.node.refresh_from_db()
    assert machine.node.frame == frame + 1
    assert desired_state(machine.node).policy == wire.NodePolicy(cleared={gpu_uuid("gpu1", 1): 123.5})
    # It is healthy when its agent reports so, not before.
    assert machine.gpu(1).unhealthy == "XID 79"
    say(machine, good("NoXidErrors", gpu=1))
    assert machine.gpu(1).unhealthy == ""


def test_a_node_that_moves_to_a_pool_with_other_rules_has_them_told(cast: Cast, machine: Machine) -> None:
    tenants.create_pool(principal=SYSTEM, name="strict")
    cast.olga.patch("pools/strict/", {"audit_policy": "kill"})
    machine.node.refresh_from_db()
    frame = machine.node.frame
    assert cast.olga.patch("nodes/gpu1/", {"pool": "strict"}).status == 200
    state = desired_state(machine.node)
    assert (state.policy, state.frame) == (wire.NodePolicy(audit="kill"), frame + 1)


def test_a_pool_as_it_usually_is_sends_older_agents_nothing_new(cast: Cast, machine: Machine) -> None:
    assert '"policy"' not in wire.encode(desired_state(machine.node))
