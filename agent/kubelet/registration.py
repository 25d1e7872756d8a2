"""The registration with the kubelet: two sockets beside its own, registered again after each of its restarts.

A kubelet that starts removes every socket of the directory and makes its own anew. This is detected by checking once a
second: a directory on another machine's disk, or one that is mounted later, sends no notification.
"""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import structlog
from grpc import aio

from agent.kubelet import calls
from agent.kubelet.calls import Unreachable
from agent.kubelet.devices import CORE, MEMORY, Offer
from agent.kubelet.plugin import OPTIONS, Plugin
from agent.kubelet.proto import deviceplugin_pb2 as pb

log = structlog.get_logger()

LOOK_SECONDS = 1.0
ENDPOINTS = {CORE: "gpucloud-vcuda-core.sock", MEMORY: "gpucloud-vcuda-memory.sock"}
# The time that calls under way may take when the plugin ends.
GRACE_SECONDS = 0.5


class Registration:
    """The registration of the plugins. `offered` returns the present offer of a resource, once a second."""

    def __init__(self, directory: Path, plugins: list[Plugin], offered: Callable[[str], Offer]) -> None:
        self._directory = directory
        self._kubelet = directory / "kubelet.sock"
        self._plugins = plugins
        self._offered = offered
        self._servers: list[aio.Server] = []
        self._problem: str | None = None

    async def run(self) -> None:
        """Keep the plugins registered until cancelled."""
        try:
            while True:
                try:
                    await self._serve_until_restart()
                    problem = None
                except (OSError, Unreachable) as error:
                    problem = str(error)
                if problem is not None and problem != self._problem:
                    log.warning("kubelet-not-told", reason=problem)
                self._problem = problem
                await self._close()
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            await self._close()

    async def _serve_until_restart(self) -> None:
        """Serve and register; return when the kubelet is another one. Raises OSError, Unreachable."""
        kubelet = _identity(self._kubelet)
        if kubelet is None:
            raise FileNotFoundError(f"{self._kubelet} is not there: is the kubelet running?")
        for one in self._plugins:
            one.update(self._offered(one.resource))
            self._remove(one)
            self._servers.append(await calls.serve(self._socket(one), one))
        own = [_identity(self._socket(one)) for one in self._plugins]
        for one in self._plugins:
            request = pb.RegisterRequest(
                version=calls.VERSION, endpoint=ENDPOINTS[one.resource], resource_name=one.resource, options=OPTIONS
            )
            await calls.register(self._kubelet, request)
        log.info("kubelet-told", resources=[one.resource for one in self._plugins])
        self._problem = None
        while _identity(self._kubelet) == kubelet and [_identity(self._socket(one)) for one in self._plugins] == own:
            for one in self._plugins:
                one.update(self._offered(one.resource))
            await asyncio.sleep(LOOK_SECONDS)
        log.info("kubelet-restarted")

    def _socket(self, plugin: Plugin) -> Path:
        return self._directory / ENDPOINTS[plugin.resource]

    async def _close(self) -> None:
        servers, self._servers = self._servers, []
        for server in servers:
            await server.stop(GRACE_SECONDS)
        for one in self._plugins if servers else ():
            with contextlib.suppress(OSError):
                self._remove(one)

    def _remove(self, plugin: Plugin) -> None:
        """Remove its socket, which a killed agent may have left."""
        self._socket(plugin).unlink(missing_ok=True)


def _identity(path: Path) -> tuple[int, int] | None:
    """Return inode and time of the socket, which differ for a new one of its name; None if there is none."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_ctime_ns
