"""How agents are let in that come all at once: a few at a time, in the order in which they came.

An agent waits fifteen seconds for its welcome. A thousand that are greeted at the same time would all get it too late,
come again, and be too late again; so those who came first are greeted first. Whoever waits too long is told to come
again just before it would give up by itself. Not at once: who is refused at once comes back at once, and that costs
more than letting it wait.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

# While one waits for the database another is worked on; more would only wait for each other.
AT_ONCE = 4
# Of the agent's fifteen seconds (`agent/server/link.py`): the rest is for reading its hello and for the greeting.
LONGEST_WAIT_SECONDS = 11.0

_slots: "WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]" = WeakKeyDictionary()


@asynccontextmanager
async def slot() -> AsyncIterator[None]:
    """Wait for it, and hold it. Raises TimeoutError."""
    slots = _slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE))
    await asyncio.wait_for(slots.acquire(), LONGEST_WAIT_SECONDS)
    try:
        yield
    finally:
        slots.release()
