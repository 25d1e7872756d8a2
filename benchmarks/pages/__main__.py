"""`make bench-pages`: the dashboard over 200 nodes of 8 GPUs, 3,200 assignments, 50 tenants and their history.

There are four parts. `paint`: every page in headless Chromium with a cold cache. `living`: the overview, open for some
minutes. `dashboards`: two hundred of them at once, against one server process. `lists`: every list with 10,000 rows
more. Meanwhile the fleet's agents measure once a second, and a claim is resized every second. PostgreSQL (durable),
Valkey, server, worker, beat, browser and agents share the machine.
"""

import argparse
import asyncio
import os
import re
import tempfile
from pathlib import Path

from benchmarks.pages.beating import run_fleet
from benchmarks.pages.chrome import chrome
from benchmarks.report import Row, print_report
from benchmarks.telemetry.filled import Filled
from benchmarks.telemetry.stage import Stage, stage

PARTS = ("paint", "living", "dashboards", "lists")


def main() -> None:
    """Fill, measure, print."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="gpucloud-bench-", dir=arguments.directory) as directory:
        print(f"filling the database for {arguments.nodes:,} nodes …", flush=True)

        def fill(nodes: int) -> Filled:
            from benchmarks.pages import filling  # noqa: PLC0415 - models, once apps are loaded

            filled = filling.furnish(nodes)
            if arguments.days:
                filling.history(arguments.days)
            return filled

        # The measuring client sends more requests than a person.
        os.environ["THROTTLE_PER_SECOND"] = "0"
        with stage(Path(directory), nodes=arguments.nodes, fill=fill) as ready, run_fleet(ready):
            print_report("pages", *measure(ready, arguments))


def measure(ready: Stage, arguments: argparse.Namespace) -> list[list[Row]]:
    """Return a table for each chosen part."""
    from benchmarks.pages import filling, paint  # noqa: PLC0415 - models, once apps are loaded
    from benchmarks.pages.dashboards import measure as open_at_once  # noqa: PLC0415 - beside the others
    from benchmarks.pages.living import measure_overview  # noqa: PLC0415 - likewise
    from tests.pages.addresses import addresses  # noqa: PLC0415 - routes, once apps are loaded

    tables = []
    parts = arguments.parts.split(",")
    chosen = [path for path in addresses(**filling.sample()) if re.search(arguments.pages, path)]
    found = paint.query_costs(chosen) if "paint" in parts else {}
    if "paint" in parts:
        with chrome() as browser:
            tables.append(paint.paint_rows(browser, ready, found, arguments.times))
    if "living" in parts:
        tables.append(measure_overview(ready, arguments.minutes))
    if "dashboards" in parts:
        counts = (0, arguments.dashboards)
        tables.append([asyncio.run(open_at_once(ready, count, arguments.seconds)) for count in counts])
    # Last: the rows that it adds would slow the others.
    if "lists" in parts:
        from benchmarks.pages import lists  # noqa: PLC0415 - models, once apps are loaded

        lists.lengthen(arguments.rows)
        tables.append(lists.list_rows(arguments.times))
    return tables


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-pages", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=200, help="of 8 GPUs with two claims each (200)")
    parser.add_argument("--days", type=int, default=30, help="days of roll-ups (30; 0: none)")
    parser.add_argument("--pages", default="", help="the addresses that are opened: a regular expression (all)")
    parser.add_argument("--parts", default=",".join(PARTS), help="paint,living,dashboards,lists")
    parser.add_argument("--times", type=int, default=5, help="how often each page is opened (5)")
    parser.add_argument("--minutes", type=float, default=30.0, help="that the overview stays open (30)")
    parser.add_argument("--dashboards", type=int, default=200, help="open at once (200)")
    parser.add_argument("--seconds", type=float, default=60.0, help="that they are (60)")
    parser.add_argument("--rows", type=int, default=10_000, help="that each list gets (10,000)")
    parser.add_argument("--directory", type=Path, help="where the database lies (the system's temporary directory)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
