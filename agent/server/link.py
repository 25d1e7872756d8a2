"""The one connection to the server: opened, kept, and reopened for as long as the agent lives.

A connection's life: hello, welcome, then frames both ways until it breaks. One task reads, one task writes, nothing
else touches the socket. A broken connection changes nothing on the machine.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple, assert_never

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from agent import wire, wire_bounds
from agent.backoff import Backoff
from agent.logs import log
from agent.server.outbox import Outbox
from agent.server.rest import is_loopback

WELCOME_SECONDS = 15.0
# After a connection that stood this long, the next failure starts from the shortest pause again.
STEADY_SECONDS = 10.0
# Two agents with one credential would otherwise disconnect each other for ever.
SUPERSEDED_PAUSES = 8
# Half-open connections (a pulled cable) are noticed after at most both together.
KEEPALIVE_SECONDS = 20.0


class CredentialRefused(Exception):
    """Refusal of this agent's secret, unknown or revoked; trying again cannot help."""


class _NotWelcome(Exception):
    """First frame of the server other than `welcome`."""


class Callbacks(NamedTuple):
    """The link's calls into the rest of the agent."""

    # Describe the machine now.
    hello: Callable[[], Awaitable[wire.Hello]]
    # Make the machine match; the flag is True for the first desired after a welcome.
    desired: Callable[[wire.Desired, bool], None]
    # The server's time, just received.
    server_time: Callable[[float], None]
    # The server has so many bytes of this run's output.
    stored: Callable[[str, int], None] = lambda _uid, _length: None
    # Open this tunnel.
    tunnel: Callable[[wire.Tunnel], None] = lambda _frame: None
    # Let a client in.
    remote: Callable[[wire.RemoteTicket], None] = lambda _frame: None


class Link:
    """The connection to one server."""

    def __init__(
        self, *, server: str, credential: str, outbox: Outbox, callbacks: Callbacks, backoff_cap_seconds: float
    ) -> None:
        # http → ws, https → wss
        self._url = f"ws{server.removeprefix('http')}/ws/agent/"
        self._credential = credential
        self._outbox = outbox
        self._callbacks = callbacks
        self._backoff = Backoff(backoff_cap_seconds)
        self._superseded_seconds = backoff_cap_seconds * SUPERSEDED_PAUSES
        self._socket: ClientConnection | None = None
        # Since when the server has accepted us, by the monotonic clock; None while it has not.
        self._welcomed_at: float | None = None

    @property
    def connected(self) -> bool:
        """True from the server's welcome to the end of the connection."""
        return self._welcomed_at is not None

    async def run(self) -> None:
        """Keep a connection until cancelled. Raises CredentialRefused."""
        while True:
            pause = await self._connection()
            await asyncio.sleep(pause)

    async def renew(self) -> None:
        """Connect again, to send a hello with the changes."""
        if self._socket is not None:
            await self._socket.close(1000, "another hello follows")

    async def _connection(self) -> float:
        """Run one connection to its end; return the seconds to wait before the next. Raises CredentialRefused."""
        busy_seconds = 0
        try:
            async with self._connect() as self._socket:
                await self._converse(self._socket)
            reason = "closed"
        except ConnectionClosed as closed:
            if closed.rcvd and closed.rcvd.code == wire.CLOSE_UNAUTHORISED:
                raise CredentialRefused(closed.rcvd.reason or "closed as unauthorised") from closed
            if closed.rcvd and closed.rcvd.code == wire.CLOSE_SUPERSEDED:
                return self._pause_superseded()
            if closed.rcvd and closed.rcvd.code == wire.CLOSE_BUSY:
                busy_seconds = wire.Busy.seconds_of(closed.rcvd.reason)
            reason = str(closed)
        except InvalidStatus as error:
            reason = str(error)
            if error.response.status_code in (401, 403):
                # The server accepts first and closes with a code of its own: a proxy's refusal may pass.
                reason += ", by something between here and the server (a proxy?), not by the server itself"
        except wire.MalformedFrame as error:
            reason = f"the server sent a frame that is none: {error}"
        except (OSError, TimeoutError, WebSocketException, _NotWelcome) as error:
            reason = str(error) or type(error).__name__
        finally:
            stood_seconds = self._end()
        return self._pause(reason, stood_seconds=stood_seconds, busy_seconds=busy_seconds)

    def _end(self) -> float:
        """Reset the state after a connection; return for how many seconds it was welcome."""
        stood_seconds = 0.0 if self._welcomed_at is None else time.monotonic() - self._welcomed_at
        self._socket = self._welcomed_at = None
        return stood_seconds

    def _connect(self) -> connect:
        return connect(
            self._url,
            additional_headers={"Authorization": f"Bearer {self._credential}"},
            max_size=wire_bounds.MAX_DESIRED_BYTES,
            ping_interval=KEEPALIVE_SECONDS,
            ping_timeout=KEEPALIVE_SECONDS,
            close_timeout=1,
            # Most frames are small and local networks fast: compression would only cost the node time.
            compression=None,
            proxy=None if is_loopback(self._url) else True,
        )

    async def _converse(self, socket: ClientConnection) -> None:
        await socket.send(wire.encode(await self._callbacks.hello()))
        welcome = await self._receive(socket, timeout=WELCOME_SECONDS)
        if not isinstance(welcome, wire.Welcome):
            raise _NotWelcome(f"the server began with {type(welcome).__name__.lower()}, not with welcome")
        self._welcomed_at = time.monotonic()
        self._callbacks.server_time(welcome.server_time)
        log.info("connected", node=welcome.node_name, clock_offset_seconds=round(welcome.server_time - time.time(), 3))
        self._outbox.restart(health=welcome.health, borrowed=welcome.borrowed)
        both = [asyncio.create_task(self._read(socket)), asyncio.create_task(self._write(socket))]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            ends = await asyncio.gather(*both, return_exceptions=True)
        # The reader's error first: it has the cause, the writer's only the effect.
        for end in ends:
            if isinstance(end, Exception):
                raise end

    async def _read(self, socket: ClientConnection) -> None:
        first = True
        while True:
            frame = await self._receive(socket)
            match frame:
                case wire.Desired():
                    self._callbacks.desired(frame, first)
                    first = False
                case wire.Ack():
                    self._outbox.acknowledge(frame.seq)
                case wire.Stored():
                    self._callbacks.stored(frame.uid, frame.bytes)
                case wire.Tunnel():
                    self._callbacks.tunnel(frame)
                case wire.RemoteTicket():
                    self._callbacks.remote(frame)
                case wire.Welcome():
                    raise wire.MalformedFrame("a second welcome")
                case _:
                    assert_never(frame)

    async def _receive(self, socket: ClientConnection, *, timeout: float | None = None) -> wire.FromServer:
        """Return the next frame. Raises MalformedFrame (after closing the socket with its code), ConnectionClosed."""
        async with asyncio.timeout(timeout):
            text = await socket.recv()
        try:
            return wire.decode_from_server(text)
        except wire.MalformedFrame as error:
            await socket.close(wire.CLOSE_MALFORMED, str(error)[:100])
            raise

    async def _write(self, socket: ClientConnection) -> None:
        while True:
            await socket.send(await self._outbox.take())

    def _pause_superseded(self) -> float:
        log.warning(
            "superseded",
            reason="another agent connected as this node; two must not share one identity",
            retry_seconds=round(self._superseded_seconds, 2),
        )
        return self._superseded_seconds

    def _pause(self, reason: str, *, stood_seconds: float, busy_seconds: int) -> float:
        if stood_seconds >= STEADY_SECONDS:
            self._backoff.reset()
        # The server says the same to all who come at once, so the back-off is added.
        pause = busy_seconds + self._backoff.next()
        log.warning("disconnected", reason=reason, retry_seconds=round(pause, 2))
        return pause
