"""`make bench-replicas`: what users notice of the end of a web server, a scheduler or the primary database.

Two web servers, two schedulers and two workers run behind a balancer, over PostgreSQL with a synchronous standby, and
simulated agents are spread over the web servers. Everything shares this machine.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path

import msgspec

from benchmarks.replicas import returning
from benchmarks.report import Row, print_report
from benchmarks.telemetry.filled import Filled
from tests.replicas.platform import Replicas

PARTS = ("return", "change")


def main() -> None:
    """Fill, measure, print."""
    parser = argparse.ArgumentParser(prog="make bench-replicas", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=100, help="of 8 GPUs with two claims each (100)")
    parser.add_argument("--web", type=int, default=2, help="web servers (2)")
    parser.add_argument("--runs", type=int, default=3, help="of each part (3)")
    parser.add_argument("--parts", default=",".join(PARTS), help=",".join(PARTS))
    arguments = parser.parse_args()
    environment = {"AGENTS": "no", "FILL": str(arguments.nodes), "WEB": str(arguments.web)}
    with (
        tempfile.TemporaryDirectory(prefix="gpucloud-bench-") as directory,
        Replicas(Path(directory) / "demo", environment=environment) as platform,
    ):
        print_report("replicas", *measure(platform, arguments.parts.split(","), arguments.runs))


def measure(platform: Replicas, parts: list[str], runs: int) -> list[list[Row]]:
    """Return a table for each chosen part."""
    filled = msgspec.json.decode((platform.state / "filled.json").read_bytes(), type=Filled)
    tables = []
    for part in parts:
        kill = part == "return"
        rows = []
        for _ in range(runs):
            rows.append(asyncio.run(returning.measure(platform, filled.nodes, kill=kill)))
            # A killed server is there again before the next run.
            platform.pid("server-1")
        tables.append(rows)
    return tables


if __name__ == "__main__":
    main()
