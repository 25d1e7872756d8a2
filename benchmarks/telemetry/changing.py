"""One node whose claims are resized many times a second: the lag of the stored observation."""

import asyncio
import time
from itertools import cycle

from benchmarks.report import Row, quantile
from benchmarks.telemetry.calls import call
from benchmarks.telemetry.fleet import Agent
from benchmarks.telemetry.stage import Stage

# Clients that take turns; a change takes some 40 ms of the server.
CLIENTS = 8
LOOKS_A_SECOND = 10
# The first changes make connections, threads and compiled queries.
WARM_UP_SECONDS = 3.0


async def change_steadily(ready: Stage, agent: Agent, *, a_second: float, seconds: float) -> Row:
    """Resize the node's claims at this rate for this long; return the lag in frames, sampled ten times a second."""
    await agent.connect(ready.port)
    first, begun = max(agent.frames), time.monotonic()
    until = begun + WARM_UP_SECONDS + seconds
    clients = [_resize(ready, agent, number, a_second / CLIENTS, until) for number in range(CLIENTS)]
    lags, changed = await asyncio.gather(_lags(agent.node.uid, until), asyncio.gather(*clients))
    wall = time.monotonic() - begun
    dropped = agent.socket.closed
    frames = max(agent.frames) - first
    agent.hang_up()
    return {
        "wanted changes a second": a_second, "seconds": round(wall), "changes a second": sum(changed) / wall,
        "frames to the agent": frames, "lag p50": quantile(lags, 0.5), "lag p95": quantile(lags, 0.95),
        "lag max": max(lags), "connection": dropped or "held",
    }  # fmt: skip


async def _lags(node_uid: str, until: float) -> list[int]:
    from benchmarks.telemetry.filling import lag_of  # noqa: PLC0415 - models, once apps are loaded

    found = []
    await asyncio.sleep(WARM_UP_SECONDS)
    while time.monotonic() < until:
        found.append(await asyncio.to_thread(lag_of, node_uid))
        await asyncio.sleep(1 / LOOKS_A_SECOND)
    return found


async def _resize(ready: Stage, agent: Agent, number: int, a_second: float, until: float) -> int:
    """Resize as one client, with claims of its own."""
    claims, limits, done = cycle(agent.node.claims[number::CLIENTS]), cycle([60, 70, 80]), 0
    due = time.monotonic() + number / CLIENTS / a_second
    while due < until:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        await asyncio.to_thread(call, ready, "PATCH", f"claims/{next(claims)}/", {"core_limit": next(limits)})
        done += 1
        due += 1 / a_second
    return done
