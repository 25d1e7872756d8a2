"""The agent as a kubelet's driver for tests: its settings, and what the scheduler and the control plane decide."""

import uuid
from typing import Any

from agent import wire
from tests.agent.control import Connection
from tests.agent.plugin_watcher import Driver, PluginWatcher
from tests.agent.stage import Stage, eventually

# Its name in the cluster.
NODE = "gpu-1.example"
# Namespace, name and uid of a ResourceClaim.
Key = tuple[str, str, str]


def settings_of(watcher: PluginWatcher, **more: str) -> dict[str, Any]:
    return {
        "GPUCLOUD_KUBELET_DIR": str(watcher.registry.parent / "device-plugins"),
        "GPUCLOUD_KUBERNETES_NODE": NODE,
        "GPUCLOUD_DRA": "on",
        "GPUCLOUD_DEVICE_PLUGIN": "off",
        "GPUCLOUD_METRICS": "off",
    } | more


async def connect(stage: Stage) -> Connection:
    link = await stage.control.connection()
    hello = await link.expect(wire.Hello)
    assert (hello.kubernetes_node, hello.dra) == (NODE, True)
    stage.gpus = [gpu.uuid for gpu in hello.gpus]
    return link


async def start(stage: Stage, watcher: PluginWatcher) -> Connection:
    """Return the connection of a new agent whose driver is registered."""
    stage.start(**settings_of(watcher))
    connection = await connect(stage)
    await registered(watcher)
    return connection


async def registered(watcher: PluginWatcher) -> Driver:
    driver: Driver = await eventually(lambda: watcher.drivers.get(wire.DRA_DRIVER))
    return driver


def resource_claim(name: str = "gpu") -> Key:
    return "vision", name, str(uuid.uuid4())


def allocate(
    stage: Stage, key: Key, gpu: int = 0, *, request: str = "gpu", share: str = "", **more: Any
) -> wire.Assignment:
    """Return the assignment that the control plane makes for an allocated device."""
    namespace, name, uid = key
    device = stage.gpus[gpu].lower()
    held = wire.ResourceClaim(
        namespace=namespace, name=name, uid=uid, pool=NODE, device=device, request=request, share_id=share
    )
    return stage.assignment(gpu=gpu, resource_claim=held, **more)


def cdi_id(assignment: wire.Assignment) -> str:
    return f"gpucloud.io/vgpu={assignment.claim_uid}"
