"""Pending messages to one agent: the newest of each kind only, so an agent that does not read costs no more.

Nothing else writes to the socket. A desired state replaces one that was not sent yet, an acknowledgement covers all
frames before it, and nothing is sent after the end.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from django.utils import timezone

from agent import wire

# A socket buffers megabytes before it blocks; an agent that reads none of them for so long is gone.
READS_WITHIN_SECONDS = 10.0
# Requests to an agent that does not read them: who asked gives up after a few seconds.
MOST_TUNNELS = 64

Send = Callable[[dict[str, Any]], Awaitable[None]]


class Outgoing:
    """Pending messages of one connection."""

    def __init__(self) -> None:
        self._news = asyncio.Event()
        # The node's uid and name while its welcome is pending.
        self._welcome: tuple[str, str] | None = None
        self._desired: str | None = None
        self._ack: int | None = None
        # The stored length of each run's output that was not confirmed yet.
        self._stored: dict[str, int] = {}
        # Tunnels to dial and tickets of remote shares, as text.
        self._tunnels: deque[str] = deque(maxlen=MOST_TUNNELS)
        self._end: tuple[int, str] | None = None

    @property
    def is_ended(self) -> bool:
        """True once the end was sent or is next."""
        return self._end is not None

    def welcome(self, *, node_uid: str, node_name: str) -> None:
        """Send the welcome, before everything else."""
        self._welcome = node_uid, node_name
        self._news.set()

    def desired(self, text: str) -> None:
        """Send the newest desired state."""
        self._desired = text
        self._news.set()

    def ack(self, seq: int) -> None:
        """Acknowledge all frames up to this one."""
        self._ack = seq
        self._news.set()

    def stored(self, uid: str, length: int) -> None:
        """Confirm that this run's output is stored up to this length."""
        self._stored[uid] = length
        self._news.set()

    def tunnel(self, frame: wire.Tunnel) -> None:
        """Have the agent dial this tunnel."""
        self._tunnels.append(wire.encode(frame))
        self._news.set()

    def remote(self, frame: wire.RemoteTicket) -> None:
        """Have the agent let a client in."""
        self._tunnels.append(wire.encode(frame))
        self._news.set()

    def end(self, code: int, why: str) -> None:
        """End the connection; the first reason counts."""
        if self._end is None:
            self._end = code, why
            self._news.set()

    async def write(self, send: Send) -> None:
        """Send everything until the end is sent. Raises OSError; TimeoutError if the agent does not read."""
        is_over = False
        while not is_over:
            await self._news.wait()
            self._news.clear()
            is_over = self.is_ended
            for message in self._take_messages():
                async with asyncio.timeout(READS_WITHIN_SECONDS):
                    await send(message)

    def _take_messages(self) -> list[dict[str, Any]]:
        if self._end is not None:
            code, why = self._end
            return [{"type": "websocket.close", "code": code, "reason": why}]
        texts = []
        if self._welcome is not None:
            uid, name = self._welcome
            now = timezone.now().timestamp()
            welcome = wire.Welcome(node_uid=uid, node_name=name, server_time=now, health=True, borrowed=True)
            texts.append(wire.encode(welcome))
        if self._desired is not None:
            texts.append(self._desired)
        if self._ack is not None:
            texts.append(wire.encode(wire.Ack(seq=self._ack)))
        texts += [wire.encode(wire.Stored(uid=uid, bytes=length)) for uid, length in self._stored.items()]
        texts += self._tunnels
        self._tunnels.clear()
        self._welcome = self._desired = self._ack = None
        self._stored = {}
        return [{"type": "websocket.send", "text": text} for text in texts]
