"""The device plugin as an optional part of the agent; nothing of it is imported if it is off."""

from collections.abc import Callable
from typing import Protocol

from agent.host.gpus import Inventory
from agent.host.health import Health
from agent.launch.methods import LaunchMethods
from agent.node import Node
from agent.settings import Settings


class Part(Protocol):
    """A part that the agent keeps running."""

    async def run(self) -> None: ...


def create(
    settings: Settings, node: Node, launch_methods: LaunchMethods, health: Health, inventory: Callable[[], Inventory]
) -> Part | None:
    """Create the device plugin as the settings say; None if it is off."""
    if settings.kubelet is None:
        return None
    # gRPC costs eleven megabytes, and machines without a kubelet need not have it.
    from agent.kubelet import devices  # noqa: PLC0415
    from agent.kubelet.plugin import Plugin  # noqa: PLC0415
    from agent.kubelet.pods import Pods  # noqa: PLC0415
    from agent.kubelet.registration import Registration  # noqa: PLC0415

    def current_offer(resource: str) -> devices.Offer:
        gpus = inventory().gpus
        return devices.offer(resource, gpus, devices.unhealthy_gpus(gpus, health.conditions))

    pods = Pods(
        settings.kubelet.pod_resources,
        directory=settings.kubelet.directory,
        node=node,
        launch_methods=launch_methods,
        library=settings.library,
        minors=lambda: inventory().minors,
    )
    plugins = [
        Plugin(
            resource,
            pods,
            offered=devices.Offer({}),
            assignments=lambda: node.desired.assignments if node.desired else (),
        )
        for resource in (devices.CORE, devices.MEMORY)
    ]
    return Registration(settings.kubelet.directory, plugins, current_offer)
