"""`make bench-telemetry`: the cost of a fleet's telemetry to one server process with one worker, and lost frames.

Simulated agents of 8 GPUs and 16 assignments each send one frame a second over real websockets; pages watch some of
them; a claim is resized every second, and at the end a change goes to every node. PostgreSQL (durable), Valkey, server,
worker, beat and this generator share the machine, or have processors of their own (`--cpus`); CPU is reported by
process.
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from pathlib import Path

import uvloop

from benchmarks.report import Row, description, print_report, quantile
from benchmarks.telemetry import spying
from benchmarks.telemetry.calls import call
from benchmarks.telemetry.changing import change_steadily
from benchmarks.telemetry.costs import cpu_seconds, memory
from benchmarks.telemetry.filled import Filled
from benchmarks.telemetry.fleet import Agent, Browser, beat
from benchmarks.telemetry.returning import come_back
from benchmarks.telemetry.stage import Stage, stage

WARM_UP_SECONDS = 10.0
CONNECTED_AT_ONCE = 20
BROWSERS = 40
IN_FORCE_SECONDS = 30.0
# Time of a size besides its seconds: connecting, warming up, the push to all, counting lost frames.
AROUND_SECONDS = 60.0


class Results:
    """The rows so far: on the screen, and in the file, which is complete after each of them."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._tables: dict[str, list[Row]] = {}

    def add(self, table: str, *rows: Row) -> None:
        """Print and store rows."""
        self._tables.setdefault(table, []).extend(rows)
        for row in rows:
            print(table, json.dumps(row, default=str), flush=True)
        if self._file is not None:
            new = self._file.with_suffix(".new")
            new.write_text(json.dumps({"machine": description(), **self._tables}, indent=1))
            new.replace(self._file)

    def print(self) -> None:
        """Print all rows as tables."""
        print_report("telemetry", *self._tables.values())


def main() -> None:
    """Measure and print."""
    arguments = _arguments()
    end = time.monotonic() + arguments.within
    sizes = [int(size) for size in arguments.nodes.split(",")]
    kept = Results(arguments.out)
    if arguments.cpus:
        os.sched_setaffinity(0, _processors(arguments.cpus))
    with tempfile.TemporaryDirectory(prefix="gpucloud-bench-", dir=arguments.directory) as directory:
        print(f"filling the database for {max(sizes):,} nodes …", flush=True)
        with stage(Path(directory), nodes=max(sizes)) as ready:
            if arguments.agents_cpus:
                os.sched_setaffinity(0, _processors(arguments.agents_cpus))
            print("filled", flush=True)
            kept.add("returning", uvloop.run(measure_return(ready, max(sizes))))
            changed = change_steadily(
                ready, Agent(ready.filled.nodes[0]), a_second=arguments.changes, seconds=arguments.changing
            )
            kept.add("one node changed steadily", uvloop.run(changed))
            for size in () if arguments.connect_only else sizes:
                wanted = arguments.last if size == sizes[-1] else arguments.seconds
                seconds = min(wanted, end - time.monotonic() - AROUND_SECONDS)
                if seconds < min(wanted, 10):
                    print(f"no time is left for {size:,} nodes", flush=True)
                    break
                uvloop.run(measure(ready, size, seconds, arguments.profile, kept))
    kept.print()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-telemetry", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", default="100,300,1000", help="sizes of the fleet, one after the other")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each size but the last (60)")
    parser.add_argument("--last", type=float, default=600.0, help="of the last size (600)")
    parser.add_argument("--changes", type=float, default=20.0, help="resizes a second of one node (20)")
    parser.add_argument("--changing", type=float, default=20.0, help="seconds of these, before the fleet (20)")
    parser.add_argument("--within", type=float, default=3600.0, help="seconds for all: sizes are cut short (3600)")
    parser.add_argument("--connect-only", action="store_true", help="only how all agents come back at once")
    parser.add_argument("--cpus", help="processors of server, worker, beat, PostgreSQL and Valkey: 0,1")
    parser.add_argument("--agents-cpus", help="processors of the simulated agents and pages: 2-15")
    parser.add_argument("--out", type=Path, help="a file for the rows, written after each")
    parser.add_argument("--directory", type=Path, help="where the database lies (the system's temporary directory)")
    parser.add_argument("--profile", action="store_true", help="say where the server's time goes (py-spy)")
    return parser.parse_args()


def _processors(text: str) -> set[int]:
    """Parse processors, `0,2-4` as 0, 2, 3, 4; those not available to this process are left out."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return (found & os.sched_getaffinity(0)) or found


async def measure_return(ready: Stage, size: int) -> Row:
    """Connect all agents of the largest fleet at once, and disconnect them."""
    agents = [Agent(node) for node in ready.filled.nodes[:size]]
    row = await come_back(ready, agents)
    for agent in agents:
        agent.hang_up()
    await asyncio.sleep(2)
    return row


async def measure(ready: Stage, size: int, seconds: float, profile: bool, kept: Results) -> None:
    """Measure one size: costs, durations, and memory over time."""
    agents = [Agent(node) for node in ready.filled.nodes[:size]]
    for first in range(0, size, CONNECTED_AT_ONCE):
        await asyncio.gather(*(agent.connect(ready.port) for agent in agents[first : first + CONNECTED_AT_ONCE]))
    print(f"{size:,} agents are connected", flush=True)
    browsers = await _warm_up(ready, agents)
    before, sent, begun = cpu_seconds(ready), sum(agent.seq for agent in agents), time.monotonic()
    spy = spying.spy_on(ready.pids["server"]) if profile else None
    until = begun + seconds
    late, resized, grown = await asyncio.gather(
        beat(agents, until), _resize_on(ready, agents[0], until), memory(ready, until)
    )
    after, wall = cpu_seconds(ready), time.monotonic() - begun
    frames = sum(agent.seq for agent in agents) - sent
    kept.add("memory", *({"nodes": size, **row} for row in grown))
    times = _times(size, agents, browsers, resized)
    pushed = await _push_to_all(ready, agents)
    count_lost, unsaid = await _lost(agents)
    if spy is not None:
        spying.print_profile(spy)
    for socket in (*(agent.socket for agent in agents), *(browser.socket for browser in browsers)):
        assert socket is not None
        socket.close()
    cost = {
        "nodes": size, "seconds": round(wall), "frames": frames, "acknowledged but lost": count_lost,
        "not acknowledged": unsaid, "generator late ms": late * 1000,
        **{f"{who} CPU %": (after[who] - before[who]) * 100 / wall for who in after},
        "all but generator, CPU ms a frame": sum(after[who] - before[who] for who in ready.pids) * 1000 / frames,
    }  # fmt: skip
    kept.add("cost", cost)
    kept.add("times", times | pushed)


def _times(
    size: int, agents: list[Agent], browsers: list[Browser], resized: list[tuple[float, float]]
) -> dict[str, float]:
    """Return the durations in milliseconds."""
    answers, resizes = zip(*resized, strict=True)
    pushes = [max(0.0, whole - answer) for answer, whole in resized]
    acks = [value * 1000 for agent in agents for value in agent.ack_seconds]
    lags = [lag * 1000 for browser in browsers for lag in browser.lags]
    return {
        "nodes": size, "ack p50 ms": quantile(acks, 0.5), "ack p95 ms": quantile(acks, 0.95),
        "browser lag p50 ms": quantile(lags, 0.5), "browser lag p95 ms": quantile(lags, 0.95),
        "foreign frames": sum(browser.foreign for browser in browsers), "resizes": len(resizes),
        "resize answer p50 ms": quantile(answers, 0.5), "resize answer p99 ms": quantile(answers, 0.99),
        "push p50 ms": quantile(pushes, 0.5), "push p99 ms": quantile(pushes, 0.99),
        "resize p50 ms": quantile(resizes, 0.5), "resize p99 ms": quantile(resizes, 0.99),
    }  # fmt: skip


async def _warm_up(ready: Stage, agents: list[Agent]) -> list[Browser]:
    """Open the pages, and run for a while that is not counted."""
    browsers = _browsers(ready.filled, agents)
    await asyncio.gather(*(browser.connect(ready.port) for browser in browsers))
    await beat(agents, time.monotonic() + WARM_UP_SECONDS)
    for agent in agents:
        agent.ack_seconds.clear()
    for browser in browsers:
        browser.lags.clear()
    return browsers


def _browsers(filled: Filled, agents: list[Agent]) -> list[Browser]:
    """Return browsers: half of them operators at nodes, half members of tenants at claims of theirs."""
    found = []
    for number in range(BROWSERS // 2):
        node = agents[number * len(agents) // (BROWSERS // 2)].node
        found.append(Browser(f"node={node.name}", filled.cookie, None))
        # Nodes carry 16 claims, so the tenants take turns within each.
        at = number % len(node.claims)
        found.append(Browser(f"claim={node.claims[at]}", filled.cookies[at % len(filled.cookies)], node.claims[at]))
    return found


async def _resize_on(ready: Stage, agent: Agent, until: float) -> list[tuple[float, float]]:
    """Resize repeatedly; return milliseconds from the PATCH to its answer and to its generation at the node's agent."""
    found, claim, limit = [], agent.node.claims[0], 50
    while time.monotonic() < until - 2:
        limit = 130 - limit
        sent = time.time()
        changed = await asyncio.to_thread(call, ready, "PATCH", f"claims/{claim}/", {"core_limit": limit})
        answered = time.time()
        key = claim, changed["generation"]
        end = time.monotonic() + IN_FORCE_SECONDS
        while key not in agent.heard_at and time.monotonic() < end:  # noqa: ASYNC110 - the agent notes the moment
            await asyncio.sleep(0.002)
        heard = agent.heard_at.get(key, sent + IN_FORCE_SECONDS)
        found.append(((answered - sent) * 1000, (heard - sent) * 1000))
        await asyncio.sleep(0.9)
    return found


async def _push_to_all(ready: Stage, agents: list[Agent]) -> dict[str, float]:
    """Change how the pool shares its GPUs under load.

    Return the seconds until every agent has the change, and until that is stored.
    """
    from benchmarks.telemetry.filling import is_behind  # noqa: PLC0415 - models, once apps are loaded

    until = time.monotonic() + IN_FORCE_SECONDS
    load = asyncio.ensure_future(beat(agents, until))
    pool = await asyncio.to_thread(call, ready, "GET", "pools/default/")
    known = {id(agent): max(agent.frames) for agent in agents}
    begun = time.time()
    await asyncio.to_thread(call, ready, "PATCH", "pools/default/", {"core_ceiling": 189 - pool["core_ceiling"]})
    answered = time.time()
    while time.monotonic() < until and any(max(agent.frames) == known[id(agent)] for agent in agents):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    everywhere = max(agent.frames[max(agent.frames)] for agent in agents)
    while time.monotonic() < until and await asyncio.to_thread(is_behind, len(agents)):  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    said = time.time()
    await load
    return {
        "push: answer s": answered - begun, "push: at every agent s": everywhere - begun,
        "push: every observation stored s": said - begun,
    }  # fmt: skip


async def _lost(agents: list[Agent]) -> tuple[int, int]:
    from benchmarks.telemetry.filling import count_lost  # noqa: PLC0415 - models, once apps are loaded

    await asyncio.sleep(3)
    told = [(agent.node.uid, agent.first_seq, agent.acknowledged) for agent in agents]
    unsaid = sum(agent.seq - agent.acknowledged for agent in agents)
    return await asyncio.to_thread(count_lost, told), unsaid


if __name__ == "__main__":
    main()
