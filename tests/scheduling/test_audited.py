"""Findings of agents on their GPUs: stored, and shown to operators and to the admins of the process' tenant."""

import pytest

from agent import wire
from apps.quotas.models import AuditEvent
from apps.scheduling.gateway import Gateway
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.desired import desired_state
from tests.cast import Cast, Machine, give_plenty, gpu_uuid, placed


@pytest.fixture
def machine(cast: Cast) -> Machine:
    give_plenty(cast.acme, cast.globex)
    return Machine("gpu1", cast.pool)


def report(machine: Machine, claim: Claim | None) -> None:
    process = wire.GpuProcess(
        pid=4711,
        command="python",
        gpu_uuid=gpu_uuid(machine.name, 0),
        memory_bytes=1 << 30,
        claim_uid=str(claim.uid) if claim else None,
    )
    event = wire.Event(
        at=1.0, code="process-unlimited", detail="Process 4711 (python) is held by nothing.", process=process
    )
    text = wire.encode(event)
    decoded = wire.decode_from_agent(text)
    assert decoded == event
    Gateway().event(machine.node, event)


def reports_seen(cast: Cast) -> list[int]:
    """Return the number of reports that Olga, Anna and Gus see."""
    path = "audit/?action=agent.process-unlimited"
    return [len(who.get(path).body["results"]) for who in (cast.olga, cast.anna, cast.gus)]


def test_a_report_of_a_claims_process_is_its_tenants_too(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine)
    report(machine, claim)
    assert reports_seen(cast) == [1, 1, 0]
    row = AuditEvent.objects.get(action="agent.process-unlimited")
    assert row.after is not None
    assert row.after["process"] == {
        "pid": 4711,
        "command": "python",
        "gpu_uuid": gpu_uuid("gpu1", 0),
        "memory_bytes": 1 << 30,
        "claim_uid": str(claim.uid),
    }


def test_a_report_of_nobodys_process_is_the_operators(cast: Cast, machine: Machine) -> None:
    report(machine, None)
    assert reports_seen(cast) == [1, 0, 0]


def test_a_node_is_not_believed_of_claims_that_it_does_not_carry(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine)
    report(Machine("gpu2", cast.pool), claim)
    assert reports_seen(cast) == [1, 0, 0]


def tell_of_long_kernel(machine: Machine, assignment_uid: str) -> None:
    detail = "A kernel or graph of the claim takes 20.0 ms."
    event = wire.Event(at=1.0, code=wire.LONG_KERNEL, detail=detail, assignment_uid=assignment_uid)
    Gateway().event(machine.node, event)


def test_the_owner_of_a_long_kernel_is_told_on_its_claim(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine)
    tell_of_long_kernel(machine, str(claim.assignments.get().uid))
    row = AuditEvent.objects.get(action="claim.long_kernel")
    assert (row.object_id, row.tenant, row.after) == (
        str(claim.uid),
        cast.acme,
        {"detail": "A kernel or graph of the claim takes 20.0 ms."},
    )
    assert AuditEvent.objects.get(action="agent.kernel-too-long").tenant == cast.acme


def test_another_node_cannot_tell_of_its_kernels(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine)
    tell_of_long_kernel(Machine("gpu2", cast.pool), str(claim.assignments.get().uid))
    assert not AuditEvent.objects.filter(action="claim.long_kernel").exists()


def test_the_pools_bound_reaches_its_nodes(cast: Cast, machine: Machine) -> None:
    placed(cast, machine)
    before = machine.node.frame
    cast.olga.patch("pools/default/", {"longest_kernel_ms": 5})
    machine.node.refresh_from_db()
    assert machine.node.frame > before
    policy = desired_state(machine.node).policy
    assert isinstance(policy, wire.NodePolicy)
    assert policy.longest_kernel_ms == 5
    refused = cast.olga.patch("pools/default/", {"longest_kernel_ms": 0})
    assert refused.status == 400
    assert "longest_kernel_ms" in str(refused.body)
