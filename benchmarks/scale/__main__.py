"""`make bench-scale`: costs of a large installation as it grows, and several web servers on one machine.

Parts, in this order. `growth`: requests to one web server while nodes, claims, tenants and history grow a hundredfold.
`before`: posts of sixteen clients to as many web servers of another checkout (`--before`), in turn with this one's; one
that needs other migrations cannot be compared. `capacity`: requests, page parts and frames a second of 1, 2 and 4 web
servers. `fleets`: agents at once a second, open dashboards, a change for all agents, and a web server that is killed.
PostgreSQL (durable), Valkey, web servers, scheduler, worker, beat, agents and clients share the machine. Placements:
`make bench-scheduler`.
"""

import argparse
import itertools
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks.report import Row, description, print_report
from benchmarks.scale import fleets, requests
from benchmarks.scale.crowd import Crowds, crowds
from benchmarks.scale.stage import Stage, stage

# The name of a table, and what returns a row of it or prepares the next.
Step = tuple[str, Callable[[], Row | None]]

PARTS = ("growth", "capacity", "fleets")
STEPS = (100, 10, 1)
GROWING = (
    "GET claims/{uid}/", "GET claims/?limit=50", "GET claims/?limit=50&state=active", "POST claims/",
    "page part of a member", "page part of an operator",
)  # fmt: skip
POSTS = ("POST claims/", "POST claims/, 1 tenant")
SCALING = ("GET claims/{uid}/", "POST claims/", "page part of a member")
# The first run warms up: servers import and connect with their first requests.
BEFORE_RUNS = 3
# Agents that fill one web server when they do not pause.
EAGER_EACH = 160
TENANTS = 6400


def main() -> None:
    """Measure and print."""
    arguments = _arguments()
    parts, end = arguments.parts.split(","), time.monotonic() + arguments.within
    tables, failed = dict[str, list[Row]](), list[str]()
    with tempfile.TemporaryDirectory(prefix="gpucloud-bench-", dir=arguments.directory) as directory:
        nodes = arguments.nodes // STEPS[0] if "growth" in parts else arguments.nodes
        with stage(Path(directory), web=arguments.web, nodes=nodes) as ready:
            for table, row in measure(ready, parts, arguments):
                if row is None:
                    failed.append(table)
                    continue
                tables.setdefault(table, []).append(row)
                print(table, json.dumps(row), flush=True)
                if arguments.out is not None:
                    arguments.out.write_text(json.dumps({"machine": description(), **tables}, indent=1))
                if time.monotonic() > end:
                    print("no time is left", flush=True)
                    break
    print_report("scale", *tables.values())
    if failed:
        sys.exit(f"rows are missing: {', '.join(failed)}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-scale", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=1000, help="of 8 GPUs with two claims each, at last (1,000)")
    parser.add_argument("--web", type=int, default=4, help="web servers (4)")
    parser.add_argument("--before", type=Path, help="another checkout, whose posts are compared")
    parser.add_argument("--history", type=int, default=100_000, help="released claims at last (100,000)")
    parser.add_argument("--fleets", default="100,1000", help="agents, one size after the other (100,1000)")
    parser.add_argument("--dashboards", default="0,20,200", help="open at once, one number after the other (0,20,200)")
    parser.add_argument("--kills", type=int, default=2, help="of a web server (2)")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each row (8)")
    parser.add_argument("--parts", default=",".join(PARTS), help=",".join(PARTS))
    parser.add_argument("--within", type=float, default=3600.0, help="seconds for all; rows are left out then (3600)")
    parser.add_argument("--out", type=Path, help="a file for the rows, written after each")
    parser.add_argument("--directory", type=Path, help="where the database lies (the system's temporary directory)")
    return parser.parse_args()


def measure(ready: Stage, parts: list[str], arguments: argparse.Namespace) -> Iterator[tuple[str, Row | None]]:
    """Yield each row with the name of its table; None for what failed, whose error is printed."""
    steps: list[Step] = []
    if "growth" in parts:
        steps += _growth(ready, arguments)
    if arguments.before is not None:
        steps += _before(ready, arguments.before, arguments.seconds)
    with crowds(ready.ports) as agents:
        if "capacity" in parts:
            steps += _capacity(ready, agents, arguments.seconds)
        if "fleets" in parts:
            steps += _fleets(ready, agents, arguments)
        for table, act in steps:
            try:
                row = act()
            except Exception:  # noqa: BLE001 - an hour's other rows are not lost with this one
                traceback.print_exc()
                yield table, None
            else:
                yield from [(table, row)] if row else []


def _growth(ready: Stage, arguments: argparse.Namespace) -> Iterator[Step]:
    """Measure requests while the database grows in three steps; the last size stays."""
    from benchmarks.scale import filling  # noqa: PLC0415 - models, once apps are loaded

    def grow(factor: int) -> None:
        filling.grow_tenants(TENANTS // factor)
        filling.grow_nodes(arguments.nodes // factor)
        filling.add_history(
            arguments.history // factor - (0 if factor == STEPS[0] else arguments.history // factor // 10)
        )
        ready.filled.nodes[:] = filling.known_nodes()

    def ask(name: str) -> Row:
        row = requests.measure(ready, name, ports=ready.ports[:1], clients=4, seconds=arguments.seconds)
        return filling.sizes() | row

    for factor in STEPS:
        yield "growth", partial(grow, factor)
        yield from (("growth", partial(ask, name)) for name in GROWING)


def _before(ready: Stage, tree: Path, seconds: float) -> Iterator[Step]:
    """Measure posts to the web servers of another checkout, and to those of this one, in turn."""
    names, ports = [f"web-before-{number}" for number in range(len(ready.ports))], {"after": ready.ports, "before": []}

    def start() -> None:
        ports["before"] += [ready.start_web(name, tree) for name in names]
        ready.wait_ready()

    def post(run: int, name: str, code: str) -> Row:
        clients = requests.CLIENTS // len(ports[code])
        row = requests.measure(ready, name, ports=ports[code], clients=clients, seconds=seconds)
        return {"code": code, "run": run, **row}

    def end() -> None:
        for name in names:
            ready.end(name)

    yield "before", start
    for run, name, code in itertools.product(range(BEFORE_RUNS), POSTS, ("before", "after")):
        yield "before", partial(post, run, name, code)
    yield "before", end


def _capacity(ready: Stage, agents: Crowds, seconds: float) -> Iterator[Step]:
    """Measure 1, 2, 4, … web servers, each with as many clients."""
    numbers = [number for number in (1, 2, 4, 8) if number <= len(ready.ports)]

    def ask(name: str, number: int) -> Row:
        # The goal for posts is of sixteen clients together.
        clients = requests.CLIENTS // number if name.startswith("POST") else requests.CLIENTS
        return requests.measure(ready, name, ports=ready.ports[:number], clients=clients, seconds=seconds)

    def frames(number: int) -> Row:
        nodes, before = ready.filled.nodes[: EAGER_EACH * number], ready.cpu_seconds()
        stored = sum(agents.command("eager", ready.ports[:number], seconds, nodes=nodes))
        after = ready.cpu_seconds()
        spent = {f"{who} s": after[who] - before[who] for who in ("web", "postgres")}
        return {"agents": len(nodes), "web servers": number, "frames a second": stored / seconds, **spent}

    yield from (("capacity", partial(ask, name, number)) for name in SCALING for number in numbers)
    yield from (("frames", partial(frames, number)) for number in numbers)


def _fleets(ready: Stage, agents: Crowds, arguments: argparse.Namespace) -> Iterator[Step]:
    """Measure agents at once a second, dashboards, and changes for all."""
    sizes, seconds = list(map(int, arguments.fleets.split(","))), arguments.seconds

    def start() -> None:
        from benchmarks.scale import filling  # noqa: PLC0415 - models, once apps are loaded

        filling.drop_pending()
        for program in (ready.commands.scheduler(), ready.commands.worker(), ready.commands.beat()):
            ready.start(program)
        ready.wait_ready()

    def connect(there: int, size: int) -> Row:
        begun, before = time.monotonic(), ready.cpu_seconds()
        agents.command("grow", nodes=ready.filled.nodes[there:size])
        wall, after, new = time.monotonic() - begun, ready.cpu_seconds(), size - there
        spent = {f"{who} ms each": (after[who] - before[who]) * 1000 / new for who in ("web", "postgres")}
        return {"agents": size, "connected": new, "seconds": wall, **spent}

    yield "fleets", start
    for there, size in itertools.pairwise([0, *sizes]):
        yield "connected", partial(connect, there, size)
        yield "fleets", partial(fleets.steady, ready, agents, size, seconds)
    for count in map(int, arguments.dashboards.split(",")):
        yield "dashboards", partial(fleets.watched, ready, sizes[-1], count, 2 * seconds)
    yield "changes", partial(fleets.change_all, ready, agents, sizes[-1], kill=False)
    for _ in range(arguments.kills):
        yield "changes", partial(fleets.change_all, ready, agents, sizes[-1], kill=True)


if __name__ == "__main__":
    main()
