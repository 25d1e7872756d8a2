"""Kernels of best-effort claims that take longer than the pool wants, measured by the library in real programs."""

import asyncio

from agent import wire
from tests.agent.control import Connection, Control
from tests.agent.stage import GIB, GPULOAD, Stage, eventually
from tests.agent.test_metrics import metrics_port, read

BOUND_MS = 5
LONG_US = "20000"


def best_effort(stage: Stage, *, policy: wire.Policy = "preempt", is_best_effort: bool = True) -> wire.Assignment:
    sharing = wire.Sharing(policy=policy, best_effort=is_best_effort)
    return stage.assignment(core_request=20, core_limit=100, memory_bytes=GIB, sharing=sharing)


async def wanted(link: Connection, *assignments: wire.Assignment) -> None:
    """Put these in force under a pool's bound of five milliseconds."""
    policy = wire.NodePolicy(longest_kernel_ms=BOUND_MS)
    await link.send(wire.Desired(frame=1, policy=policy, assignments=list(assignments)))
    for one in assignments:
        await link.state(one.uid, "in_force")


async def test_a_best_effort_claims_long_kernel_is_told_once_and_measured(stage: Stage, control: Control) -> None:
    port, link = await metrics_port(stage, control)
    held = best_effort(stage)
    await wanted(link, held)
    stage.exec(held.claim_uid, str(GPULOAD), "--kernel-us", LONG_US)
    told = await link.expect(wire.Event, lambda one: one.code == wire.LONG_KERNEL)
    assert told.assignment_uid == held.uid
    assert f"best-effort claim {held.claim_uid} takes 20." in told.detail
    assert "The pool wants at most 5 ms" in told.detail
    (sample,) = (await asyncio.to_thread(read, port))["gpucloud_agent_longest_kernel_seconds"].samples
    assert sample.labels == {"assignment": held.uid}
    assert 0.019 < sample.value < 0.03
    assert stage.log_text().count(wire.LONG_KERNEL) == 1


async def test_short_kernels_and_claims_with_a_guarantee_are_not(stage: Stage, link: Connection) -> None:
    short, guaranteed = best_effort(stage), best_effort(stage, is_best_effort=False)
    await wanted(link, short, guaranteed)
    stage.exec(short.claim_uid, str(GPULOAD), "--kernel-us", "500")
    stage.exec(guaranteed.claim_uid, str(GPULOAD), "--kernel-us", LONG_US)
    # Both have been measured, so that a report would have been due.
    await eventually(lambda: 400 < stage.totals(short).longest_kernel_us < BOUND_MS * 1000)
    await eventually(lambda: stage.totals(guaranteed).longest_kernel_us > BOUND_MS * 1000)
    await link.expect(wire.Usage)
    await link.expect(wire.Usage)
    assert wire.LONG_KERNEL not in stage.log_text()
