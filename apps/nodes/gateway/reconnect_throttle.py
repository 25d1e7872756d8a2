"""Throttle for agents that reconnect at the same time: a few are greeted at once, in order of arrival.

An agent waits fifteen seconds for its welcome. If a thousand were greeted at once all of them would be late, reconnect,
and be late again. So the first are greeted first. An agent that would wait too long, by the number before it and the
mean time of a greeting, is told at once when to come again: by then those before it are greeted. It holds no socket
meanwhile, and another server behind the same balancer may greet it.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

# Enough to work on one while another waits for the database; more would only wait for each other.
AT_ONCE = 4
# Part of the agent's fifteen seconds (`agent/server/link.py`): the rest is for reading the hello and for the greeting.
LONGEST_WAIT_SECONDS = 11.0
# Before any was measured, and the weight of each new one in the mean.
FIRST_MEAN_SECONDS, WEIGHT = 0.05, 0.05


class TooMany(Exception):
    """More agents came at once than can be greeted in time; the seconds until those before are greeted."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"too many agents came at once: {seconds:.0f} s")
        self.seconds = seconds


class Throttle:
    """The greetings of one event loop."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(AT_ONCE)
        # Those that wait or are greeted.
        self._present = 0
        self._mean_seconds = FIRST_MEAN_SECONDS

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a slot and hold it. Raises TooMany."""
        expected = max(0, self._present - AT_ONCE + 1) * self._mean_seconds / AT_ONCE
        if expected > LONGEST_WAIT_SECONDS:
            raise TooMany(expected)
        self._present += 1
        try:
            await self._acquire()
            begun = time.monotonic()
            try:
                yield
            finally:
                self._mean_seconds += WEIGHT * (time.monotonic() - begun - self._mean_seconds)
                self._slots.release()
        finally:
            self._present -= 1

    async def _acquire(self) -> None:
        try:
            await asyncio.wait_for(self._slots.acquire(), LONGEST_WAIT_SECONDS)
        except TimeoutError as error:
            raise TooMany(LONGEST_WAIT_SECONDS) from error


_throttles: "WeakKeyDictionary[asyncio.AbstractEventLoop, Throttle]" = WeakKeyDictionary()


def of_this_loop() -> Throttle:
    """Return the throttle of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _throttles:
        _throttles[loop] = Throttle()
    return _throttles[loop]
