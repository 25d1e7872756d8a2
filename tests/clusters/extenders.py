"""The extender's listener in a thread, as its command starts it, for a test's clusters."""

import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import uvicorn

from apps.clusters.extender.cluster import Extended
from apps.clusters.extender.handler import ExtenderHandler, Networks
from apps.clusters.extender.listener import configuration
from apps.clusters.kube.client import Client
from apps.clusters.kube.mirror import Mirror
from apps.clusters.kube.reflector import NODES, PODS, Reflector
from tests.processes import eventually


class Listening:
    """A listener that serves while the context is entered."""

    def __init__(
        self, *, networks: Networks | None = None, leads: Callable[[], bool] = lambda: True, **tls: Any
    ) -> None:
        """Take `tls`, uvicorn's options for certificates."""
        self.clusters: dict[str, Extended] = {}
        self.watches: list[Reflector] = []
        self.troubles: list[str] = []
        # The cluster that short paths mean; None: the first of `clusters`.
        self.first: str | None = None
        self._socket = socket.create_server(("127.0.0.1", 0))
        handler = ExtenderHandler(
            self.clusters,
            networks=networks,
            version="test",
            first=lambda: self.first or next(iter(self.clusters), None),
            leads=leads,
        )
        self._scheme = "https" if tls else "http"
        self._server = uvicorn.Server(configuration(handler, **tls))
        self._thread = threading.Thread(target=lambda: self._server.run(sockets=[self._socket]), daemon=True)

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._socket.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for watch in self.watches:
            watch.stop()
        self._server.should_exit = True
        self._thread.join(timeout=30)

    def begin(self, name: str, client: Client, **options: Any) -> Extended:
        """Answer for this cluster once its pods and nodes are known."""
        mirror = Mirror()
        watches = [
            Reflector(client, kind, see=mirror.see, fail=lambda kind, text: self.troubles.append(f"{kind}: {text}"))
            for kind in (PODS, NODES)
        ]
        self.watches += watches
        for watch in watches:
            watch.start()
        assert eventually(lambda: mirror.ready, seconds=30), self.troubles
        self.clusters[name] = Extended(name, client, mirror, **options)
        return self.clusters[name]
