"""The fleet behind the pages: every node's agent measures once a second, and a claim is resized every second."""

import asyncio
import contextlib
import http.client
import itertools
import json
import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event

import uvloop

from benchmarks.telemetry.filled import Filled
from benchmarks.telemetry.fleet import Agent, beat
from benchmarks.telemetry.stage import Stage

AT_ONCE = 20
FOREVER = 86_400.0


@contextlib.contextmanager
def run_fleet(ready: Stage) -> Iterator[int]:
    """Run the fleet in a separate process; yield its pid."""
    # A fork would copy Django's threads and connections.
    context = multiprocessing.get_context("spawn")
    begun = context.Event()
    process = context.Process(target=_beat, args=(ready.port, ready.filled, begun), daemon=True)
    process.start()
    try:
        assert begun.wait(120), "the simulated agents did not connect within two minutes"
        assert process.pid is not None
        yield process.pid
    finally:
        process.terminate()
        process.join()


def resize(port: int, token: str, claim: str, limit: int) -> None:
    """Resize a claim, as CI does.

    Raises AssertionError if it is refused.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connection.request("PATCH", f"/api/v1/claims/{claim}/", json.dumps({"core_limit": limit}), headers)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    assert answer.status == 200, text


def _beat(port: int, filled: Filled, begun: Event) -> None:
    uvloop.run(_run(port, filled, begun))


async def _run(port: int, filled: Filled, begun: Event) -> None:
    agents = [Agent(node) for node in filled.nodes]
    for first in range(0, len(agents), AT_ONCE):
        await asyncio.gather(*(agent.connect(port) for agent in agents[first : first + AT_ONCE]))
    begun.set()
    # Samples are stored by the server; only the telemetry benchmark needs them here.
    await asyncio.gather(beat(agents, time.monotonic() + FOREVER), _forget(agents), _resize(port, filled))


async def _forget(agents: list[Agent]) -> None:
    while True:
        await asyncio.sleep(10)
        for agent in agents:
            agent.ack_seconds.clear()


async def _resize(port: int, filled: Filled) -> None:
    claims = [node.claims[-1] for node in filled.nodes]
    for number in itertools.count():
        claim, limit = claims[number % len(claims)], 60 + number // len(claims) % 40
        with contextlib.suppress(OSError):
            await asyncio.to_thread(resize, port, filled.token, claim, limit)
        await asyncio.sleep(1)
