"""Static MIG instances: the agent uses what an operator made, and neither makes nor removes any."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent import wire
from tests.agent import forked
from tests.agent.control import Connection, Control
from tests.agent.stage import Stage
from tests.agent.test_instances import H200, LARGE, connect, hard, instances_of, make_by_hand, run_nvml
from tests.agent.test_limits import load
from tests.agent.test_reconcile import changed, put

WHOLE = (
    "instance = n.nvmlDeviceGetGpuInstanceById(gpu, 1)",
    "whole = n.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, 3, 0)",
    "n.nvmlGpuInstanceCreateComputeInstance(instance, whole.id)",
)


@pytest.fixture
async def prepared(tmp_path: Path, run_dir: Path, control: Control) -> AsyncIterator[Stage]:
    """Return a node with a 4g instance that somebody made on its first GPU, without a compute instance."""
    it = Stage(tmp_path, run_dir, control, gpus=2, agents=forked.server(), shape=H200)
    make_by_hand(it, 5)
    yield it
    it.close()


def complete(stage: Stage) -> None:
    """Make its compute instance with all slices, as `nvidia-smi mig -cci` does."""
    run_nvml(stage, *WHOLE)


async def gone(link: Connection, held: wire.Assignment) -> None:
    await link.send(wire.Desired(frame=9, assignments=[changed(held, generation=2, present=False)]))
    await link.state(held.uid, "released", 2)


async def test_an_instance_is_used_and_stays(prepared: Stage) -> None:
    complete(prepared)
    before = instances_of(prepared)
    prepared.start()
    link = await connect(prepared)
    held = hard(prepared, LARGE, prepared=True)
    await put(link, 1, held)
    slot = prepared.slot(held)
    assert slot is not None
    assert before == {"0:4": f"MIG-{slot.gpu}"}
    await load(prepared, held, "--memory", "1GiB")
    # It is an operator's still, and told as such.
    await prepared.kill()
    prepared.start()
    again = await prepared.control.connection()
    hello = await again.expect(wire.Hello)
    assert isinstance(hello.gpus[0].mig, wire.Mig)
    assert hello.gpus[0].mig.foreign == [LARGE]
    await put(again, 1, held)
    await gone(again, held)
    assert instances_of(prepared) == before
    assert json.loads((prepared.run_dir / "instances.json").read_text()) == []


async def test_one_without_a_whole_compute_instance_is_named_until_it_has_one(prepared: Stage) -> None:
    prepared.start()
    link = await connect(prepared)
    held = hard(prepared, LARGE, prepared=True)
    await link.send(wire.Desired(frame=1, assignments=[held]))
    seen = await link.state(held.uid, "failed")
    assert "has no compute instance with all of its slices (nvidia-smi mig -cci)" in (seen.reason or "")
    complete(prepared)
    await link.state(held.uid, "in_force")


async def test_none_is_made_where_none_is(prepared: Stage) -> None:
    prepared.start()
    link = await connect(prepared)
    held = hard(prepared, prepared=True)
    await link.send(wire.Desired(frame=1, assignments=[held]))
    seen = await link.state(held.uid, "failed")
    assert "none is at slice 6, and the pool's are static" in (seen.reason or "")
    await gone(link, held)
    assert list(instances_of(prepared)) == ["0:4"]
