"""The registration of the driver: a socket in the directory that the kubelet's plugin watcher follows.

A kubelet that starts finds the sockets that are there and registers their drivers, and one that runs notices new and
removed ones; it leaves all of them alone. So a socket that is there and is ours needs nothing more.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from agent import wire
from agent.kubelet.calls import Context
from agent.kubelet.dra import calls
from agent.kubelet.proto import pluginregistration_pb2 as pb
from agent.kubelet.sockets import LOOK_SECONDS, SocketServers, identity
from agent.logs import log

REGISTRATION_SOCKET = f"{wire.DRA_DRIVER}-reg.sock"
DRIVER_SOCKET = "dra.sock"


class DriverRegistration(SocketServers):
    """The driver's socket in `directory`, and the one in `registry` by which the kubelet finds it."""

    def __init__(
        self,
        *,
        registry: Path,
        directory: Path,
        driver: calls.Driver,
        source: calls.HealthSource,
        registered: Callable[[], Awaitable[None]],
    ) -> None:
        """Take `registered`, which is called when the kubelet has taken the driver."""
        super().__init__("dra-driver-not-registered")
        self._registry = registry
        self._directory = directory
        self._driver = driver
        self._source = source
        self._registered = registered

    async def serve_until_lost(self) -> None:
        """Serve until a socket is removed or replaced. Raises OSError."""
        if identity(self._registry) is None:
            raise FileNotFoundError(f"{self._registry} is not there: is the kubelet running?")
        _make(self._directory)
        await self.open(self._directory / DRIVER_SOCKET, calls.driver_handlers(self._driver, self._source))
        # Last: the kubelet calls the driver as soon as it finds this one.
        await self.open(self._registry / REGISTRATION_SOCKET, calls.registration_handlers(self))
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if not self.are_there():
                log.info("dra-sockets-lost")
                return

    async def info(self, request: pb.InfoRequest, context: Context) -> pb.PluginInfo:
        """Return the driver's name, its socket and its services."""
        return calls.describe(str(self._directory / DRIVER_SOCKET))

    async def note_status(self, request: pb.RegistrationStatus, context: Context) -> pb.RegistrationStatusResponse:
        """Log whether the kubelet took the driver; it tries again by itself."""
        if request.plugin_registered:
            log.info("dra-driver-registered", driver=wire.DRA_DRIVER)
            await self._registered()
        else:
            log.warning("dra-driver-not-registered", reason=request.error[:2000])
        return pb.RegistrationStatusResponse()


def _make(directory: Path) -> None:
    # Only root may call the driver.
    directory.mkdir(mode=0o750, parents=True, exist_ok=True)
