"""Queue of one agent's unhandled frames: in order, with only the newest frame of each level.

An agent that reports its state twenty times a second would otherwise be handled ever later: each frame takes its
transactions, and only the last report counts. Reading a frame frees the socket, so pings are answered however long the
previous frame takes.
"""

import asyncio
from collections import deque
from typing import Generic, TypeVar

from agent import wire

T = TypeVar("T")

# Each replaces the earlier ones of its type. An event happens once, usage is a history, a hello starts again.
LEVELS = (wire.Observed, wire.Conditions, wire.Health)
# Most frames of other types. More than an agent sends ahead (8 of usage, and events); reading stops beyond it.
MOST_WAITING = 64


class Incoming(Generic[T]):
    """Queue of one connection. Belongs to its event loop."""

    def __init__(self) -> None:
        self._waiting: deque[T] = deque()
        self._changed = asyncio.Event()
        self._closed = False

    async def put(self, frame: T) -> None:
        """Add a frame once there is room; a level replaces the older one that waits."""
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
        """Mark the end of the frames; waiting ones can still be taken."""
        self._closed = True
        self._changed.set()

    async def take(self) -> T | None:
        """Return the next frame once there is one; None after the last."""
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
