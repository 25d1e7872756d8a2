"""Simulated agents that reconnect as real ones do."""

import asyncio
import contextlib
import re
import time
from collections.abc import Callable

from agent import wire
from agent.backoff import Backoff
from agent.server.link import STEADY_SECONDS, WELCOME_SECONDS
from benchmarks.telemetry.fleet import Agent

# In which a server is looked at for having hung up.
LOOK_SECONDS = 0.05
CLOSED = re.compile(rf"closed with {wire.CLOSE_BUSY:04x}: (.*)", re.DOTALL)


class LivingAgent:
    """An agent that stays connected, on any of the ports."""

    look_seconds = LOOK_SECONDS

    def __init__(self, agent: Agent, port: Callable[[], int]) -> None:
        self.agent, self._port = agent, port
        # Tries to connect, ends of connections that had stood, and tries that were told to come again later.
        self.tries, self.losses, self.throttled = 0, 0, 0
        # Moments of the last loss and the last welcome, by the clock.
        self.lost_at = self.welcomed_at = 0.0

    async def live(self) -> None:
        """Connect, measure nothing, answer desired states, and connect again, until cancelled."""
        backoff = Backoff()
        while True:
            stood, busy = await self._connection()
            if stood >= STEADY_SECONDS:
                backoff.reset()
            await asyncio.sleep(busy + backoff.next())

    async def _connection(self) -> tuple[float, int]:
        """Run one connection; return the seconds that it stood, and those that the server asked to stay away."""
        self.tries += 1
        try:
            await self.agent.open(self._port())
            await asyncio.wait_for(self.agent.until(self.agent.welcome), WELCOME_SECONDS)
        except (TimeoutError, OSError):
            return 0.0, self._end()
        welcomed = time.monotonic()
        self.welcomed_at = time.time()
        while not self.agent.socket.closed:  # noqa: ASYNC110 - the socket has no event for its end
            await asyncio.sleep(self.look_seconds)
        self.losses, self.lost_at = self.losses + 1, time.time()
        return time.monotonic() - welcomed, self._end()

    def _end(self) -> int:
        busy = 0
        if hasattr(self.agent, "socket"):
            if found := CLOSED.search(self.agent.socket.closed):
                self.throttled += 1
                busy = wire.Busy.seconds_of(found[1])
            self.agent.hang_up()
        return busy


@contextlib.asynccontextmanager
async def living(agents: list[LivingAgent]):  # type: ignore[no-untyped-def]
    """Have all of them live until the end of the block."""
    tasks = [asyncio.ensure_future(agent.live()) for agent in agents]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for agent in agents:
            agent.agent.hang_up()
