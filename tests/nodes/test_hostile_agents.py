"""Agents that send too much, or impossible values: an attacker may control the machine."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from agent import wire
from apps.nodes.gateway import consumer
from apps.nodes.models import Sample
from apps.nodes.services import agent_rows
from apps.quotas.models import AuditEvent
from apps.scheduling.models import Assignment
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import Cast, Machine, ask, gpu_uuid, hello
from tests.nodes.agents import Agent, enrol_with, in_database
from tests.nodes.test_gateway import usage

Agents = Callable[..., Agent]


async def test_a_flood_of_events_and_conditions_adds_a_bounded_number_of_audit_rows(
    agents: Agents, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is ever removed from the audit log. Neither a new connection nor new texts restart the count."""
    for name, kept in (("EVENTS", 5), ("CONDITIONS", 7)):
        limit = dataclasses.replace(getattr(agent_rows, name), most=kept)
        monkeypatch.setattr(agent_rows, name, limit)
    before = await in_database(AuditEvent.objects.count)
    for _ in range(2):
        agent = agents()
        await agent.greet()
        for number in range(10):
            await agent.say(wire.Event(at=time.time(), code=f"xid-{number}", detail="gone"))
            told = wire.Condition(
                type="DiskSpace", status="False" if number % 2 else "True", reason="Full", since=float(number)
            )
            await agent.say(wire.Conditions(conditions=[told]))
            # Only the newest of waiting conditions counts: each is handled before the next.
            await agent.say(usage(number + 1, time.time()))
            assert isinstance(await agent.hear(), wire.Ack)
    assert await in_database(AuditEvent.objects.count) - before == 5 + 7
    said = await in_database(lambda: list(AuditEvent.objects.filter(action=agent_rows.SUPPRESSED)))
    assert len(said) == 2
    assert "More than 5 agent events within 10 minutes" in said[0].after["detail"]
    # The pages' health data continues.
    assert await in_database(lambda: machine.node.conditions.get(type="DiskSpace").since_seconds) == 9


IMPOSSIBLE_OF_A_GPU = {
    "memory_bytes": 2**63 - 1,
    "power_watts": 1e6,
    "temperature_celsius": 99_999.0,
    "sm_clock_mhz": 2**31 - 1,
    "memory_clock_mhz": 2**31 - 1,
}
IMPOSSIBLE_OF_AN_ASSIGNMENT = {"memory_bytes": 2**63 - 1, "memory_limit_bytes": 2**63 - 1, "processes": 2**31 - 1}


async def test_measured_values_that_no_hardware_has_are_refused_and_others_kept(
    agents: Agents, real_cast: Cast
) -> None:
    await in_database(lambda: ask(real_cast))
    await in_database(lambda: run_round(real_cast.pool))
    uid = str((await in_database(Assignment.objects.get)).uid)
    agent = agents()
    await agent.greet()
    whole = usage(1, time.time() - 10, uid, gpus=(gpu_uuid("gpu1", 0), gpu_uuid("gpu1", 1)))
    spoilt: list[dict[str, Any]] = [
        *[{"gpus": [msgspec.structs.replace(whole.gpus[0], **{name: value}), whole.gpus[1]], "assignments": []}
          for name, value in IMPOSSIBLE_OF_A_GPU.items()],
        *[{"gpus": [whole.gpus[1]], "assignments": [msgspec.structs.replace(whole.assignments[0], **{name: value})]}
          for name, value in IMPOSSIBLE_OF_AN_ASSIGNMENT.items()],
    ]  # fmt: skip
    for seq, frame in enumerate(spoilt, 1):
        await agent.say(msgspec.structs.replace(whole, seq=seq, at=whole.at + seq, **frame))
        assert await agent.hear() == wire.Ack(seq=seq)
    kept = await in_database(lambda: list(Sample.objects.values_list("gpu__uuid", "memory_bytes")))
    assert kept == [(gpu_uuid("gpu1", 1), 1)] * len(spoilt)


async def test_a_gpu_larger_than_any_is_refused(agents: Agents) -> None:
    agent = await agents().connect()
    first = hello("gpu1")
    huge = msgspec.structs.replace(first.gpus[0], memory_bytes=2**63 - 1)
    await agent.say(msgspec.structs.replace(first, gpus=[huge]))
    assert await agent.closed() == wire.CLOSE_MALFORMED


async def test_a_key_that_is_replaced_ends_the_connection_that_it_opened(
    agents: Agents, machine: Machine, real_cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if no hint of it arrives and the new agent has not connected yet."""
    agent = agents()
    await agent.greet()
    answer = await in_database(lambda: real_cast.olga.post("nodes/gpu1/enrolment/"))
    machine.enrolment = answer.body["enrolment_token"]
    await in_database(lambda: enrol_with(machine, "another"))
    monkeypatch.setattr(consumer, "ASK_AGAIN_SECONDS", 0.0)
    await agent.say(usage(1, time.time()))
    assert await agent.closed() == wire.CLOSE_UNAUTHORISED


async def test_an_event_about_another_nodes_claim_does_not_reach_its_tenant(agents: Agents, real_cast: Cast) -> None:
    other = await in_database(lambda: Machine("gpu2", real_cast.pool, gpus=1, memory_mib=30 * 1024))
    claim = await in_database(lambda: ask(real_cast, memory_mib=29 * 1024))
    await in_database(lambda: run_round(real_cast.pool))
    agent = agents()
    await agent.greet()
    process = wire.GpuProcess(
        pid=1, command="x", gpu_uuid=gpu_uuid(other.name, 0), memory_bytes=1, claim_uid=str(claim.uid)
    )
    await agent.say(wire.Event(at=time.time(), code="gpu-process-unclaimed", detail="x", process=process))
    await agent.say(usage(1, time.time()))
    await agent.hear()
    path = "audit/?action=agent.gpu-process-unclaimed"
    by_olga = await in_database(lambda: real_cast.olga.get(path).body["results"])
    by_anna = await in_database(lambda: real_cast.anna.get(path).body["results"])
    assert (len(by_olga), len(by_anna)) == (1, 0)
