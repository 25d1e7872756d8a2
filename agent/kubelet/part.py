"""The parts of the agent that serve a kubelet, each optional; nothing of them is imported if they are off."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from agent.host.gpus import Inventory
from agent.host.health import Health
from agent.launch.methods import LaunchMethods
from agent.metrics import Prepares
from agent.node import Node
from agent.settings import Kubelet, Settings


class Part(Protocol):
    """A part that the agent keeps running."""

    async def run(self) -> None: ...


class Sources(NamedTuple):
    """The parts of the agent that know what the kubelet asks."""

    node: Node
    launch_methods: LaunchMethods
    health: Health
    inventory: Callable[[], Inventory]
    # Counted by the driver.
    prepares: Prepares


def create(settings: Settings, sources: Sources) -> list[Part]:
    """Create the device plugin and the driver for Dynamic Resource Allocation, as the settings say."""
    kubelet = settings.kubelet
    parts = []
    if kubelet is not None and kubelet.device_plugin:
        parts.append(_create_device_plugin(kubelet, settings, sources))
    if kubelet is not None and kubelet.dra:
        parts.append(_create_driver(kubelet, settings, sources))
    return parts


def _create_device_plugin(kubelet: Kubelet, settings: Settings, sources: Sources) -> Part:
    # gRPC costs eleven megabytes, and machines without a kubelet need not have it.
    from agent.kubelet import devices  # noqa: PLC0415
    from agent.kubelet.plugin import Plugin  # noqa: PLC0415
    from agent.kubelet.pods import Pods  # noqa: PLC0415
    from agent.kubelet.registration import Registration  # noqa: PLC0415

    node = sources.node

    def current_offer(resource: str) -> devices.Offer:
        there = sources.inventory()
        unhealthy = devices.unhealthy_gpus(there.gpus, sources.health.conditions)
        return devices.offer(resource, there.gpus, unhealthy, there.memory_nodes)

    pods = Pods(
        kubelet.pod_resources,
        directory=kubelet.directory,
        node=node,
        launch_methods=sources.launch_methods,
        library=settings.library,
        minors=lambda: sources.inventory().minors,
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
    return Registration(kubelet.directory, plugins, current_offer)


def _create_driver(kubelet: Kubelet, settings: Settings, sources: Sources) -> Part:
    from agent.kubelet.dra.driver import Driver  # noqa: PLC0415
    from agent.kubelet.dra.health import HealthStream, find_health  # noqa: PLC0415
    from agent.kubelet.dra.registration import DriverRegistration  # noqa: PLC0415

    driver = Driver(
        node=sources.node,
        launch_methods=sources.launch_methods,
        library=settings.library,
        minors=lambda: sources.inventory().minors,
        prepares=sources.prepares,
    )
    stream = HealthStream(kubelet.node, lambda: find_health(sources.inventory().gpus, sources.health.conditions))
    return DriverRegistration(
        registry=kubelet.plugin_registry, directory=kubelet.driver_directory, driver=driver, source=stream
    )
