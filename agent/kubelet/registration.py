"""The registration with the kubelet: two sockets beside its own, registered again after each of its restarts.

A kubelet that starts removes every socket of the directory and makes its own anew.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from agent.kubelet import calls
from agent.kubelet.devices import CORE, MEMORY, Offer
from agent.kubelet.plugin import OPTIONS, Plugin
from agent.kubelet.proto import deviceplugin_pb2 as pb
from agent.kubelet.sockets import LOOK_SECONDS, SocketServers, identity
from agent.logs import log

ENDPOINTS = {CORE: "gpucloud-vcuda-core.sock", MEMORY: "gpucloud-vcuda-memory.sock"}


class Registration(SocketServers):
    """The registration of the plugins. `offered` returns the present offer of a resource, once a second."""

    def __init__(self, directory: Path, plugins: list[Plugin], offered: Callable[[str], Offer]) -> None:
        super().__init__("kubelet-not-told")
        self._directory = directory
        self._kubelet = directory / "kubelet.sock"
        self._plugins = plugins
        self._offered = offered

    async def serve_until_lost(self) -> None:
        """Serve and register; return when the kubelet is another one. Raises OSError, Unreachable."""
        kubelet = identity(self._kubelet)
        if kubelet is None:
            raise FileNotFoundError(f"{self._kubelet} is not there: is the kubelet running?")
        for one in self._plugins:
            one.update(self._offered(one.resource))
            await self.open(self._directory / ENDPOINTS[one.resource], calls.plugin_handlers(one))
        for one in self._plugins:
            request = pb.RegisterRequest(
                version=calls.VERSION, endpoint=ENDPOINTS[one.resource], resource_name=one.resource, options=OPTIONS
            )
            await calls.register(self._kubelet, request)
        log.info("kubelet-told", resources=[one.resource for one in self._plugins])
        while identity(self._kubelet) == kubelet and self.are_there():
            for one in self._plugins:
                one.update(self._offered(one.resource))
            await asyncio.sleep(LOOK_SECONDS)
        log.info("kubelet-restarted")
