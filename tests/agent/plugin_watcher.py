"""A small kubelet's plugin watcher and its manager of ResourceClaims, over real Unix sockets.

As in the real one (1.36: pkg/kubelet/pluginmanager, pkg/kubelet/cm/dra): each socket that appears in the directory is
asked for its name and its services; a removed one ends the registration; a socket that is made anew is another plugin;
a kubelet that starts takes the sockets that are there. It holds one connection to the driver, and a stream of health.
"""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

from grpc import aio

from agent.kubelet.proto import dra_pb2 as dra
from agent.kubelet.proto import drahealth_pb2 as health
from agent.kubelet.proto import pluginregistration_pb2 as registration
from agent.kubelet.sockets import identity

LOOK_SECONDS = 0.05
SUPPORTED = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
DRIVING = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"


def call(channel: aio.Channel, path: str, request: Any, answer: Any, *, seconds: float) -> Any:
    made: Any = channel.unary_unary(
        path, request_serializer=lambda one: one.SerializeToString(), response_deserializer=answer.FromString
    )
    return made(request, timeout=seconds, wait_for_ready=True)


class Driver:
    """A registered driver."""

    def __init__(self, info: registration.PluginInfo) -> None:
        self.info = info
        self.channel = aio.insecure_channel(f"unix:{info.endpoint}")
        # The last health of each device, and all messages.
        self.health: dict[str, health.DeviceHealth] = {}
        self.reports: list[health.NodeWatchResourcesResponse] = []
        self._watch = asyncio.ensure_future(self._follow())

    async def prepare(
        self, *claims: tuple[str, str, str], seconds: float = 45.0
    ) -> dict[str, dra.NodePrepareResourceResponse]:
        """Prepare claims, each a namespace, a name and a uid."""
        request = dra.NodePrepareResourcesRequest(claims=[_claim(*one) for one in claims])
        answer = await call(
            self.channel, f"{DRIVING}/NodePrepareResources", request, dra.NodePrepareResourcesResponse, seconds=seconds
        )
        return dict(answer.claims)

    async def unprepare(self, *claims: tuple[str, str, str]) -> dict[str, dra.NodeUnprepareResourceResponse]:
        request = dra.NodeUnprepareResourcesRequest(claims=[_claim(*one) for one in claims])
        answer = await call(
            self.channel, f"{DRIVING}/NodeUnprepareResources", request, dra.NodeUnprepareResourcesResponse, seconds=45
        )
        return dict(answer.claims)

    async def _follow(self) -> None:
        watch: Any = self.channel.unary_stream(
            "/v1alpha1.DRAResourceHealth/NodeWatchResources",
            request_serializer=lambda one: one.SerializeToString(),
            response_deserializer=health.NodeWatchResourcesResponse.FromString,
        )
        while True:
            with contextlib.suppress(aio.AioRpcError):
                async for report in watch(health.NodeWatchResourcesRequest()):
                    self.reports.append(report)
                    self.health = {one.device.device_name: one for one in report.devices}
            # It forgets all when the stream ends.
            self.health = {}
            await asyncio.sleep(LOOK_SECONDS)

    async def close(self) -> None:
        self._watch.cancel()
        await asyncio.gather(self._watch, return_exceptions=True)
        await self.channel.close()


class PluginWatcher:
    """A kubelet below `root`, whose directory of registrations is `plugins_registry`."""

    def __init__(self, root: Path) -> None:
        self.registry = root / "plugins_registry"
        self.drivers: dict[str, Driver] = {}
        # All answers of plugins, and the statuses that they were told.
        self.registrations: list[registration.PluginInfo] = []
        # The next registrations are refused in these words.
        self.refusals: list[str] = []
        self._known: dict[Path, tuple[int, int] | None] = {}
        self._names: dict[Path, str] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.registry.mkdir(parents=True, exist_ok=True)
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        """End, as a kubelet that restarts; sockets stay."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for driver in self.drivers.values():
            await driver.close()
        self.drivers, self._known, self._names = {}, {}, {}

    async def _run(self) -> None:
        while True:
            there = {path: identity(path) for path in self.registry.iterdir() if not path.name.startswith(".")}
            for path in [path for path, known in self._known.items() if there.get(path) != known]:
                del self._known[path]
                await self._deregister(path)
            for path, found in there.items():
                if path not in self._known:
                    # One that fails is tried again, as by the real one.
                    with contextlib.suppress(aio.AioRpcError):
                        self._known |= {path: found} if await self._register(path) else {}
            await asyncio.sleep(LOOK_SECONDS)

    async def _register(self, path: Path) -> bool:
        async with aio.insecure_channel(f"unix:{path}") as channel:
            ask = "/pluginregistration.Registration"
            info = await call(channel, f"{ask}/GetInfo", registration.InfoRequest(), registration.PluginInfo, seconds=1)
            self.registrations.append(info)
            error = self.refusals.pop(0) if self.refusals else self._fault(info)
            if not error:
                self.drivers[info.name] = Driver(info)
                self._names[path] = info.name
            status = registration.RegistrationStatus(plugin_registered=not error, error=error)
            await call(
                channel, f"{ask}/NotifyRegistrationStatus", status, registration.RegistrationStatusResponse, seconds=5
            )
            return not error

    def _fault(self, info: registration.PluginInfo) -> str:
        if info.type != "DRAPlugin":
            return f"no handler registered for plugin type: {info.type}"
        if not set(info.supported_versions) & set(SUPPORTED):
            return "none of services supported by the plugin are supported by the kubelet"
        if info.name in self.drivers:
            return f"endpoint {info.endpoint} already registered"
        return ""

    async def _deregister(self, path: Path) -> None:
        if name := self._names.pop(path, None):
            await self.drivers.pop(name).close()


def _claim(namespace: str, name: str, uid: str) -> dra.Claim:
    return dra.Claim(namespace=namespace, name=name, uid=uid)
