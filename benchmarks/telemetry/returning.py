"""Agents that reconnect all at once, as after a network outage: each retries as a real one does."""

import asyncio
import contextlib
import time
from dataclasses import dataclass

from agent.backoff import Backoff
from agent.server.link import WELCOME_SECONDS
from benchmarks.report import Row, quantile
from benchmarks.telemetry.costs import cpu_seconds
from benchmarks.telemetry.fleet import Agent
from benchmarks.telemetry.stage import Stage

# After this time the rest counts as not connected.
GIVEN_SECONDS = 120.0


@dataclass
class _Returned:
    welcomed: float
    ready: float
    tries: int


async def come_back(ready: Stage, agents: list[Agent]) -> Row:
    """Connect all at the same moment.

    Return the seconds until they are welcome, and until they have their desired state.
    """
    before, begun = cpu_seconds(ready), time.monotonic()
    found = await asyncio.gather(*(_return_agent(ready.port, agent, begun) for agent in agents))
    wall = time.monotonic() - begun
    # The last agents' inventories are still being stored.
    await asyncio.sleep(5)
    after = cpu_seconds(ready)
    returned = [one for one in found if one is not None]
    return {
        "returning": len(agents), "in": len(returned), "tries": sum(one.tries for one in returned),
        "welcome p50 s": quantile([one.welcomed for one in returned], 0.5),
        "welcome max s": max(one.welcomed for one in returned),
        "desired p50 s": quantile([one.ready for one in returned], 0.5),
        "desired max s": max(one.ready for one in returned), "wall s": wall,
        "server CPU ms each": (after["server"] - before["server"]) * 1000 / len(agents),
        "database CPU ms each": (after["database"] - before["database"]) * 1000 / len(agents),
    }  # fmt: skip


async def _return_agent(port: int, agent: Agent, begun: float) -> _Returned | None:
    backoff = Backoff()
    tries = 0
    while time.monotonic() - begun < GIVEN_SECONDS:
        tries += 1
        with contextlib.suppress(TimeoutError, OSError):
            await agent.open(port)
            await asyncio.wait_for(agent.until(agent.welcome), WELCOME_SECONDS)
            welcomed = time.monotonic() - begun
            await asyncio.wait_for(agent.until(agent.ready), GIVEN_SECONDS)
            return _Returned(welcomed, time.monotonic() - begun, tries)
        agent.hang_up()
        await asyncio.sleep(backoff.next())
    return None
