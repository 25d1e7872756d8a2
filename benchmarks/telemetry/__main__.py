"""`make bench-telemetry`: what a fleet's telemetry costs one server process with one worker, and what gets lost.

Simulated agents of 8 GPUs and 16 assignments each send one frame a second over real websockets; pages watch some of
them; a claim is resized every second, and at the end a change goes to every node. PostgreSQL (durable), Valkey, server,
worker, beat and this generator share the machine; CPU is told by process.
"""

import argparse
import asyncio
import http.client
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.api.cpu import seconds_below
from benchmarks.report import Row, print_report, quantile
from benchmarks.telemetry.filled import Filled
from benchmarks.telemetry.fleet import Agent, Browser, beat
from benchmarks.telemetry.memory import mib_below
from benchmarks.telemetry.stage import Stage, stage

WARM_UP_SECONDS = 10.0
CONNECTED_AT_ONCE = 20
BROWSERS = 40
IN_FORCE_SECONDS = 30.0
SPIED = "gpucloud-bench-telemetry.spied"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="make bench-telemetry", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", default="100,300,1000", help="sizes of the fleet, one after the other")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each size but the last (60)")
    parser.add_argument("--last", type=float, default=600.0, help="of the last size (600)")
    parser.add_argument("--profile", action="store_true", help="say where the server's time goes (py-spy)")
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.nodes.split(",")]
    with tempfile.TemporaryDirectory(prefix="gpucloud-bench-") as directory:
        print(f"filling the database for {max(sizes):,} nodes …", flush=True)
        with stage(Path(directory), nodes=max(sizes)) as ready:
            measured = [
                uvloop.run(
                    measure(ready, size, arguments.last if size == sizes[-1] else arguments.seconds, arguments.profile)
                )
                for size in sizes
            ]
    print_report(
        "telemetry",
        *([row for row, *_ in measured], [row for _, row, _ in measured], *(rest for *_, rest in measured if rest)),
    )


async def measure(ready: Stage, size: int, seconds: float, profile: bool) -> tuple[Row, Row, list[Row]]:
    """One size: what it cost, how long things took, and the memory over time."""
    agents = [Agent(node) for node in ready.filled.nodes[:size]]
    for first in range(0, size, CONNECTED_AT_ONCE):
        await asyncio.gather(*(agent.connect(ready.port) for agent in agents[first : first + CONNECTED_AT_ONCE]))
    print(f"{size:,} agents are connected", flush=True)
    browsers = await _warmed_up(ready, agents)
    before, sent, begun = spent(ready), sum(agent.seq for agent in agents), time.monotonic()
    spy = _spy(ready) if profile else None
    until = begun + seconds
    late, resizes, memory = await asyncio.gather(
        beat(agents, until), _resize_on(ready, agents[0], until), _memory(ready, until)
    )
    after, wall = spent(ready), time.monotonic() - begun
    frames = sum(agent.seq for agent in agents) - sent
    pushed = await _push_to_all(ready, agents)
    lost, unsaid = await _lost(agents)
    _print_profile(spy)
    for socket in (*(agent.socket for agent in agents), *(browser.socket for browser in browsers)):
        assert socket is not None
        socket.close()
    acks = [value * 1000 for agent in agents for value in agent.ack_seconds]
    lags = [lag * 1000 for browser in browsers for lag in browser.lags]
    cost = {
        "nodes": size, "seconds": round(wall), "frames": frames, "acknowledged but lost": lost,
        "not acknowledged": unsaid, "generator late ms": late * 1000,
        **{f"{who} CPU %": (after[who] - before[who]) * 100 / wall for who in after},
        "all but generator, CPU ms a frame": sum(after[who] - before[who] for who in ready.pids) * 1000 / frames,
    }  # fmt: skip
    times = {
        "nodes": size, "ack p50 ms": quantile(acks, 0.5), "ack p95 ms": quantile(acks, 0.95),
        "browser lag p50 ms": quantile(lags, 0.5), "browser lag p95 ms": quantile(lags, 0.95),
        "foreign frames": sum(browser.foreign for browser in browsers),
        "resize p50 ms": quantile(resizes, 0.5), "resize p99 ms": quantile(resizes, 0.99), **pushed,
    }  # fmt: skip
    return cost, times, [{"nodes": size, **row} for row in memory]


async def _warmed_up(ready: Stage, agents: list[Agent]) -> list[Browser]:
    """Open the pages, and let everything run for a while that is not counted."""
    browsers = _browsers(ready.filled, agents)
    await asyncio.gather(*(browser.connect(ready.port) for browser in browsers))
    await beat(agents, time.monotonic() + WARM_UP_SECONDS)
    for agent in agents:
        agent.ack_seconds.clear()
    for browser in browsers:
        browser.lags.clear()
    return browsers


def _browsers(filled: Filled, agents: list[Agent]) -> list[Browser]:
    """Half of them operators at nodes, half members of tenants at claims of theirs."""
    found = []
    for number in range(BROWSERS // 2):
        node = agents[number * len(agents) // (BROWSERS // 2)].node
        found.append(Browser(f"node={node.name}", filled.cookie, None))
        # Nodes carry 16 claims, so the tenants take turns within each.
        at = number % len(node.claims)
        found.append(Browser(f"claim={node.claims[at]}", filled.cookies[at % len(filled.cookies)], node.claims[at]))
    return found


def spent(ready: Stage) -> dict[str, float]:
    """CPU seconds of everybody so far."""
    return {who: seconds_below(pid) for who, pid in ready.pids.items()} | {"generator": time.process_time()}


def _call(ready: Stage, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", ready.port, timeout=60)
    headers = {"Authorization": f"Bearer {ready.filled.token}", "Content-Type": "application/json"}
    connection.request(method, f"/api/v1/{path}", json.dumps(body) if body else None, headers)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    assert answer.status < 300, (answer.status, text)
    found: dict[str, Any] = json.loads(text)
    return found


async def _resize_on(ready: Stage, agent: Agent, until: float) -> list[float]:
    """Milliseconds from a PATCH being sent to its generation at the node's agent, again and again."""
    found, claim, limit = [], agent.node.claims[0], 50
    while time.monotonic() < until - 2:
        limit = 130 - limit
        sent = time.time()
        changed = await asyncio.to_thread(_call, ready, "PATCH", f"claims/{claim}/", {"core_limit": limit})
        key = claim, changed["generation"]
        end = time.monotonic() + IN_FORCE_SECONDS
        while key not in agent.heard_at and time.monotonic() < end:  # noqa: ASYNC110 - the agent notes the moment
            await asyncio.sleep(0.002)
        found.append((agent.heard_at.get(key, sent + IN_FORCE_SECONDS) - sent) * 1000)
        await asyncio.sleep(0.9)
    return found


async def _memory(ready: Stage, until: float) -> list[Row]:
    """MiB of each process at the beginning, in ten steps, and at the end."""
    rows, begun = [], time.monotonic()
    step = max(5.0, (until - begun) / 10)
    while time.monotonic() <= until:
        rows.append(
            {
                "second": round(time.monotonic() - begun),
                **{f"{who} MiB": mib_below(pid) for who, pid in ready.pids.items()},
            }
        )
        await asyncio.sleep(min(step, max(0.1, until - time.monotonic())))
    return rows


async def _push_to_all(ready: Stage, agents: list[Agent]) -> dict[str, float]:
    """Change how the pool shares its GPUs under load; seconds until every agent has it, and until that is stored."""
    from benchmarks.telemetry.filling import behind  # noqa: PLC0415 - models, once apps are loaded

    until = time.monotonic() + IN_FORCE_SECONDS
    load = asyncio.ensure_future(beat(agents, until))
    pool = await asyncio.to_thread(_call, ready, "GET", "pools/default/")
    known = {id(agent): max(agent.frames) for agent in agents}
    begun = time.time()
    await asyncio.to_thread(_call, ready, "PATCH", "pools/default/", {"core_ceiling": 189 - pool["core_ceiling"]})
    answered = time.time()
    while time.monotonic() < until and any(max(agent.frames) == known[id(agent)] for agent in agents):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    everywhere = max(agent.frames[max(agent.frames)] for agent in agents)
    while time.monotonic() < until and await asyncio.to_thread(behind, len(agents)):  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    said = time.time()
    await load
    return {
        "push: answer s": answered - begun, "push: at every agent s": everywhere - begun,
        "push: every observation stored s": said - begun,
    }  # fmt: skip


async def _lost(agents: list[Agent]) -> tuple[int, int]:
    from benchmarks.telemetry.filling import lost  # noqa: PLC0415 - models, once apps are loaded

    await asyncio.sleep(3)
    told = [(agent.node.uid, agent.first_seq, agent.acknowledged) for agent in agents]
    unsaid = sum(agent.seq - agent.acknowledged for agent in agents)
    return await asyncio.to_thread(lost, told), unsaid


def _spy(ready: Stage) -> "subprocess.Popen[bytes]":
    """Samples of who holds the interpreter, for twenty seconds; the file is beside the database."""
    program = Path(sys.executable).with_name("py-spy")
    options = ("--gil", "--format", "raw", "--duration", "20", "--output", SPIED, "--pid", str(ready.pids["server"]))
    return subprocess.Popen(
        [program, "record", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tempfile.gettempdir()
    )


def _print_profile(spy: "subprocess.Popen[bytes] | None") -> None:
    """Where the server's interpreter was busy: by function, with all that it calls, and without."""
    if spy is None:
        return
    spy.wait(60)
    own, whole = Counter[str](), Counter[str]()
    file = Path(tempfile.gettempdir()) / SPIED
    for line in file.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        own[frames[-1]] += int(count)
        whole.update(dict.fromkeys(frames, int(count)))
    file.unlink()
    total = sum(own.values()) or 1
    for title, counted in (("with what it calls", whole), ("itself", own)):
        print(f"server, {title}:")
        for name, samples in counted.most_common(40):
            print(f"{100 * samples / total:6.1f} %  {name}")


if __name__ == "__main__":
    main()
