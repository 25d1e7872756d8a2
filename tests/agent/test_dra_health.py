"""The health of GPUs as a kubelet sees it for the claims of its pods."""

import asyncio
from typing import Any

import pytest

from agent import wire
from agent.kubelet.dra import health as dra_health
from agent.kubelet.proto import drahealth_pb2 as health
from tests.agent.control import Connection
from tests.agent.plugin_watcher import PluginWatcher
from tests.agent.resource_claims import NODE, registered, start
from tests.agent.stage import Stage, eventually


@pytest.fixture
async def link(stage: Stage, watcher: PluginWatcher) -> Connection:
    """Return the connection of an agent whose driver is registered."""
    return await start(stage, watcher)


async def test_the_devices_health_follows_the_gpus(link: Connection, watcher: PluginWatcher, stage: Stage) -> None:
    driver = await registered(watcher)
    names = {uuid.lower() for uuid in stage.gpus}
    await eventually(lambda: set(driver.health) == names)
    assert {(one.device.pool_name, one.health, one.message) for one in driver.health.values()} == {
        (NODE, health.HEALTHY, "")
    }
    stage.fault(1, "xid=79")
    sick = stage.gpus[1].lower()
    await eventually(lambda: driver.health[sick].health == health.UNHEALTHY)
    assert "XID 79" in driver.health[sick].message
    assert {name for name, one in driver.health.items() if one.health == health.HEALTHY} == names - {sick}
    # A kubelet without news takes the health for unknown.
    assert driver.health[sick].health_check_timeout_seconds == 30


async def test_health_is_sent_again_before_the_kubelet_forgets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 2 * dra_health.REPORT_SECONDS + dra_health.LOOK_SECONDS < dra_health.VALID_SECONDS
    monkeypatch.setattr(dra_health, "REPORT_SECONDS", 0.05)
    monkeypatch.setattr(dra_health, "LOOK_SECONDS", 0.01)
    present = [dra_health.DeviceHealth("gpu-0", True, "")]
    stream = dra_health.HealthStream(NODE, lambda: list(present))
    context: Any = None
    reports = stream.watch(health.NodeWatchResourcesRequest(), context)
    async with asyncio.timeout(5):
        assert await anext(reports) == await anext(reports)
        present[0] = dra_health.DeviceHealth("gpu-0", False, "hot")
        assert (await anext(reports)).devices[0].health == health.UNHEALTHY


def test_a_gpu_is_as_sick_as_its_conditions_say() -> None:
    gpus = [wire.Gpu(uuid=f"GPU-{number}", index=number, model="NVIDIA", memory_bytes=1) for number in range(2)]

    def condition(kind: str, message: str, **more: Any) -> wire.Condition:
        facts: dict[str, Any] = {"status": "False", "reason": "Bad", "since": 0, "unschedulable": True}
        return wire.Condition(type=kind, message=message, **(facts | more))

    def states(*conditions: wire.Condition) -> list[tuple[bool, str]]:
        return [(one.healthy, one.message) for one in dra_health.find_health(gpus, conditions)]

    assert states() == [(True, "")] * 2
    lost = condition("Reachable", "lost", gpu_uuid="GPU-1")
    hot = condition("TemperatureOk", "", gpu_uuid="GPU-1")
    assert states(lost, hot) == [(True, ""), (False, "lost Bad")]
    # They keep new claims away by the node, and no GPU is sick.
    assert states(condition("DiskSpace", "full")) == [(True, "")] * 2
    assert states(condition("TemperatureOk", "warm", gpu_uuid="GPU-1", unschedulable=False)) == [(True, "")] * 2
    assert states(condition("DriverHealthy", "gone")) == [(False, "gone")] * 2
    [_, (_, message)] = states(condition("Reachable", "ä" * 2000, gpu_uuid="GPU-1"))
    assert len(message.encode()) <= 1024
    assert message.endswith("ä...")
