"""The parts of the agent that serve a kubelet, each optional; nothing of them is imported if they are off."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from agent.host.gpus import Inventory
from agent.host.health import Health
from agent.launch.methods import LaunchMethods
from agent.metrics import Prepares
from agent.node import Node
from agent.settings import Kubelet, Settings

# The kubelet looks at its plugins once a second. Longer than twice that, claims would wait for their agent.
REGISTRATION_SECONDS = 2.5


class Part(Protocol):
    """A part that the agent keeps running."""

    async def run(self) -> None: ...


class DriverStatus:
    """The registration of the DRA driver with the kubelet, and what the server knows of it.

    kube-scheduler allocates the node's GPUs as soon as the server has published them. A kubelet without the driver
    then fails to prepare them, and tries again after a minute: so the server must not publish them before.
    """

    def __init__(self, settings: Settings, *, renew: Callable[[], Awaitable[None]]) -> None:
        """Take `renew`, which sends another hello."""
        # Counted by the driver; None if the agent is none.
        self.prepares = Prepares() if settings.is_dra_driver else None
        self._renew = renew
        self._registered = asyncio.Event()
        # The answer in the last hello; None before the first.
        self._told: bool | None = None

    async def tell(self) -> bool:
        """Return True for a hello if the kubelet has the driver.

        The first hello waits a moment for it, so that an agent that starts again keeps what is published.
        """
        if self.prepares is not None and self._told is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._registered.wait(), REGISTRATION_SECONDS)
        self._told = self._registered.is_set()
        return self._told

    async def note_registered(self) -> None:
        """Tell the server, if its last hello said otherwise."""
        self._registered.set()
        if self._told is False:
            await self._renew()


class Sources(NamedTuple):
    """The parts of the agent that know what the kubelet asks."""

    node: Node
    launch_methods: LaunchMethods
    health: Health
    inventory: Callable[[], Inventory]
    driver: DriverStatus


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
        # Pods get shares of whole GPUs: one in MIG mode has none.
        unhealthy = devices.unhealthy_gpus(there.gpus, sources.health.conditions) | there.divided
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

    assert sources.driver.prepares is not None, "the settings say that it is the driver"
    driver = Driver(
        node=sources.node,
        launch_methods=sources.launch_methods,
        library=settings.library,
        minors=lambda: sources.inventory().minors,
        prepares=sources.driver.prepares,
    )
    stream = HealthStream(kubelet.node, lambda: find_health(sources.inventory().gpus, sources.health.conditions))
    return DriverRegistration(
        registry=kubelet.plugin_registry, directory=kubelet.driver_directory, driver=driver, source=stream,
        registered=sources.driver.note_registered,
    )  # fmt: skip
