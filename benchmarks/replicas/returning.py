"""A web server is killed: how soon its agents are back, and how soon a change made meanwhile is everywhere."""

import asyncio
import time

import psycopg

from benchmarks.replicas.fleet import LivingAgent, living
from benchmarks.report import Row, quantile
from benchmarks.telemetry.filled import FilledNode
from benchmarks.telemetry.fleet import Agent
from tests.replicas import databases
from tests.replicas.platform import Replicas

GIVEN_SECONDS = 120.0
LOOK_SECONDS = 0.02
# Connections stand for so long before the kill that back-offs begin anew.
STANDS_SECONDS = 11.0
BEHIND = "SELECT count(*) FROM nodes_node WHERE frame <> observed_frame"


async def measure(platform: Replicas, nodes: list[FilledNode], *, kill: bool) -> Row:
    """Change how the pool shares its GPUs, right after the kill of a web server if wanted; return the times."""
    agents = [LivingAgent(Agent(node), lambda: platform.port) for node in nodes]
    async with living(agents):
        await _until(lambda: all(each.welcomed_at and each.agent.ready.is_set() for each in agents))
        await asyncio.sleep(STANDS_SECONDS)
        known = {id(each): max(each.agent.frames) for each in agents}
        tries, begun = sum(each.tries for each in agents), time.time()
        if kill:
            await asyncio.to_thread(platform.kill, "server-1")
        answered = await asyncio.to_thread(_change, platform)
        await _until(lambda: all(max(each.agent.frames) > known[id(each)] for each in agents))
        stored = await _stored(platform)
        await asyncio.sleep(1)
        lost = [each for each in agents if each.lost_at > begun]
        told = [each.agent.frames[max(each.agent.frames)] - begun for each in agents]
        of_lost = [each.agent.frames[max(each.agent.frames)] - begun for each in lost] or [0.0]
        back = [each.welcomed_at - each.lost_at for each in lost] or [0.0]
        return {
            "agents": len(agents), "killed": "a web server" if kill else "nothing", "lost": len(lost),
            "back p50 s": quantile(back, 0.5), "back max s": max(back),
            "in force after the kill max s": max(of_lost), "change answered s": answered - begun,
            "change at every agent s": max(told), "stored s": stored - begun,
            "tries": sum(each.tries for each in agents) - tries,
            "told to come later": sum(each.throttled for each in lost),
        }  # fmt: skip


async def _until(condition) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + GIVEN_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        await asyncio.sleep(LOOK_SECONDS)


def _change(platform: Replicas) -> float:
    """Change the pool as a careful client does; return the time of the answer."""
    while True:
        try:
            pool = platform.granted("GET", "pools/default/")
            platform.granted("PATCH", "pools/default/", {"core_ceiling": 189 - pool["core_ceiling"]})
        except OSError:
            continue
        except AssertionError as error:
            # A balancer's answer to a request that the killed server had.
            if "status=502" not in str(error):
                raise
            continue
        return time.time()


async def _stored(platform: Replicas) -> float:
    """Return the time at which every node's last frame was observed to be in force."""

    def behind() -> bool:
        with psycopg.connect(databases.url(platform.state)) as connection:
            row = connection.execute(BEHIND).fetchone()
            return bool(row and row[0])

    while await asyncio.to_thread(behind):  # noqa: ASYNC110 - a row of another process
        await asyncio.sleep(0.05)
    return time.time()
