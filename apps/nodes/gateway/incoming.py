"""What one agent said and nobody has handled yet: in order, and of each level the newest only.

An agent that says twenty times a second what is in force would otherwise be heard ever later: each frame takes its
transactions, and what the last one says is all that counts. A frame that is read makes room on the socket, so that
pings are answered however long the one before it takes.
"""

import asyncio
from collections import deque
from typing import Generic, TypeVar

from agent import wire

T = TypeVar("T")

# What each says replaces all that it said before. An event happens once, usage is a history, a hello begins anew.
LEVELS = (wire.Observed, wire.Conditions)
# Of all others. More than an agent sends ahead (8 of usage, and what happened); one that sends more is not read on.
MOST_WAITING = 64


class Incoming(Generic[T]):
    """One connection's. Belongs to its event loop."""

    def __init__(self) -> None:
        self._waiting: deque[T] = deque()
        self._changed = asyncio.Event()
        self._closed = False

    async def put(self, frame: T) -> None:
        """Add a frame, once there is room for it; a level takes the place of the older one that waits."""
        if isinstance(frame, LEVELS):
            older = next((one for one in self._waiting if type(one) is type(frame)), None)
            if older is not None:
                self._waiting.remove(older)
        else:
            while sum(not isinstance(one, LEVELS) for one in self._waiting) >= MOST_WAITING:
                await self._change()
        self._waiting.append(frame)
        self._changed.set()

    def close(self) -> None:
        """Say that nothing more comes; what waits is still to be taken."""
        self._closed = True
        self._changed.set()

    async def take(self) -> T | None:
        """Return the next frame, once there is one; None after the last."""
        while not self._waiting:
            if self._closed:
                return None
            await self._change()
        frame = self._waiting.popleft()
        self._changed.set()
        return frame

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
