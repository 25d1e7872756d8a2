"""Connections to the Jupyter of a run: each a tunnel of bytes, dialled by the run's node.

HTTP connections are kept for the next requests, for a few seconds: a page of JupyterLab asks for a hundred files.
"""

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any
from weakref import WeakKeyDictionary

import httpcore
from redis.exceptions import RedisError

from apps.nodes.models.node import hint_group
from apps.tunnels.ends import MOST_MESSAGE_BYTES, ClientEnd, Ended, Message
from apps.tunnels.rights import Opening
from gpucloud import hints

# Of one notebook in one server process; the node bounds all of them together.
MOST_CONNECTIONS, MOST_KEPT, KEPT_SECONDS = 12, 6, 20.0
# A node that reads nothing for so long is not a slow one.
WRITE_SECONDS = 120.0
# As the agent says it (`agent.jobs.streams`).
CLOSED = "closed by the notebook"


class Stream(httpcore.AsyncNetworkStream):
    """The bytes of one connection, through a tunnel. What is not read here is not sent by the node."""

    def __init__(self, end: ClientEnd) -> None:
        self._end, self._rest, self._is_over = end, b"", False
        self._alive = asyncio.ensure_future(self._keep_alive())

    @classmethod
    async def open(cls, opening: Opening) -> "Stream":
        """Have the run's node dial, and return the connection. Raises Ended."""
        end = ClientEnd(opening.node.pk)
        hint = {
            "type": "node.tunnel", "tunnel": end.uid, "run": opening.run_uid, "ticket": end.ticket, "stream": True,
        }  # fmt: skip
        await end.open()
        try:
            await hints.bus().publish([(hint_group(opening.node.pk), hint)])
            await end.await_node()
        except BaseException as error:
            await end.close("nobody waits for this tunnel")
            if isinstance(error, RedisError | OSError):
                raise Ended("the node could not be asked: try again") from error
            raise
        return cls(end)

    async def _keep_alive(self) -> None:
        try:
            await self._end.keep_alive()
        except Ended as error:
            self._end.stop(str(error))

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return the next bytes; none at the end of the connection. Raises ReadError, ReadTimeout."""
        while not self._rest and not self._is_over:
            try:
                async with asyncio.timeout(timeout):
                    message = await self._end.receive()
                self._rest = message.data
                await self._end.give_credit(message.cost)
            except TimeoutError as error:
                raise httpcore.ReadTimeout("Jupyter does not answer") from error
            except Ended as error:
                self._is_over = True
                if str(error) != CLOSED:
                    raise httpcore.ReadError(str(error)) from error
        data, self._rest = self._rest[:max_bytes], self._rest[max_bytes:]
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send the bytes. Raises WriteError, WriteTimeout."""
        try:
            async with asyncio.timeout(timeout or WRITE_SECONDS):
                for begin in range(0, len(buffer), MOST_MESSAGE_BYTES):
                    await self._end.send(Message(bytes(buffer[begin : begin + MOST_MESSAGE_BYTES]), False))
        except TimeoutError as error:
            raise httpcore.WriteTimeout("Jupyter does not read") from error
        except Ended as error:
            raise httpcore.WriteError(str(error)) from error

    async def aclose(self) -> None:
        """Close the connection."""
        self._alive.cancel()
        await self._end.close("the server closed it")

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        """Refuse: the tunnel is inside of the node's own TLS."""
        raise NotImplementedError

    def get_extra_info(self, info: str) -> Any:
        """Say whether an idle connection has something to read: its end."""
        return self._is_over or self._end.has_message if info == "is_readable" else None


class Backend(httpcore.AsyncNetworkBackend):
    """The opener of the connections to one notebook."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Open a tunnel, whatever the address. Raises ConnectError."""
        try:
            return await Stream.open(self._opening)
        except Ended as error:
            raise httpcore.ConnectError(str(error)) from error

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


class Upstream:
    """The HTTP connections to one run, in one event loop."""

    def __init__(self, opening: Opening) -> None:
        self.pool = httpcore.AsyncConnectionPool(
            max_connections=MOST_CONNECTIONS,
            max_keepalive_connections=MOST_KEPT,
            keepalive_expiry=KEPT_SECONDS,
            network_backend=Backend(opening),
        )
        self.requests, self.used_at = 0, time.monotonic()
        self.reaper: asyncio.Task[None] | None = None


_upstreams: "WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Upstream]]" = WeakKeyDictionary()


@contextlib.asynccontextmanager
async def connections(opening: Opening) -> AsyncIterator[httpcore.AsyncConnectionPool]:
    """Yield the HTTP connections to a run, and close them some time after the last request."""
    known = _upstreams.setdefault(asyncio.get_running_loop(), {})
    upstream = known.get(opening.run_uid)
    if upstream is None:
        upstream = known[opening.run_uid] = Upstream(opening)
        upstream.reaper = asyncio.ensure_future(_reap(known, opening.run_uid, upstream))
    upstream.requests += 1
    try:
        yield upstream.pool
    finally:
        upstream.requests -= 1
        upstream.used_at = time.monotonic()


async def _reap(known: dict[str, Upstream], run_uid: str, upstream: Upstream) -> None:
    while upstream.requests or time.monotonic() - upstream.used_at < KEPT_SECONDS:  # noqa: ASYNC110 - no event tells
        await asyncio.sleep(KEPT_SECONDS / 4)
    del known[run_uid]
    await upstream.pool.aclose()
