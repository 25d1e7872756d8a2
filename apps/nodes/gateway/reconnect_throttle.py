"""Throttle for agents that reconnect at the same time: a few are greeted at once, in order of arrival.

An agent waits fifteen seconds for its welcome. If a thousand were greeted at once all of them would be late, reconnect,
and be late again. So the first are greeted first, and an agent that would wait too long is told to reconnect shortly
before it gives up by itself. Not immediately: it would reconnect immediately, which costs more than letting it wait.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

# Enough to work on one while another waits for the database; more would only wait for each other.
AT_ONCE = 4
# Part of the agent's fifteen seconds (`agent/server/link.py`): the rest is for reading the hello and for the greeting.
LONGEST_WAIT_SECONDS = 11.0

_slots: "WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]" = WeakKeyDictionary()


@asynccontextmanager
async def slot() -> AsyncIterator[None]:
    """Wait for a slot and hold it. Raises TimeoutError."""
    slots = _slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE))
    await asyncio.wait_for(slots.acquire(), LONGEST_WAIT_SECONDS)
    try:
        yield
    finally:
        slots.release()
