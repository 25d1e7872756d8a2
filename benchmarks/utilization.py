"""`make bench-utilization`: how long `GET /utilization/` takes over roll-ups of a thousand GPUs and thirty days.

Rows are made by one statement a level: each GPU with two assignments, minutes, hours and days for all the time, ten
seconds for two hours. Requests go through the whole of Django, in this process: the socket is not in it.
"""

import argparse
import os
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks.report import Row, print_report, quantile
from deploy import embedded
from deploy.demo.programs import Commands
from deploy.demo.state import State

GPUS_PER_NODE = 8
TENS_HOURS = 2
FILL = """
INSERT INTO {table}
SELECT at, gpu.node_id, gpu.id, series.uid, {samples}, 40 + 30 * sin(gpu.id + extract(epoch FROM at) / 7000),
    90, 50, 3, 20000000000 + gpu.id, 30000000000, 40000000000, 400.0 * {samples}, 240, 65
FROM generate_series(%(begin)s::timestamptz, %(end)s::timestamptz - %(span)s::interval, %(span)s::interval) AS at
CROSS JOIN nodes_gpu AS gpu
JOIN (SELECT gpu_id, uid FROM scheduling_assignment
      UNION ALL SELECT id, '00000000-0000-0000-0000-000000000000' FROM nodes_gpu) AS series ON series.gpu_id = gpu.id
ORDER BY at, gpu.node_id, gpu.id, series.uid
"""


def main() -> None:
    """Fill, ask, print."""
    parser = argparse.ArgumentParser(prog="make bench-utilization", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gpus", type=int, default=1000, help="GPUs, 8 on a node (1000)")
    parser.add_argument("--days", type=int, default=30, help="days of roll-ups (30)")
    parser.add_argument("--minute-days", type=int, default=3, help="days of these for which there are minutes, too (3)")
    parser.add_argument("--times", type=int, default=20, help="how often each question is asked (20)")
    arguments = parser.parse_args()
    for name in ("DATABASE_URL", "REDIS_URL"):
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory(prefix="gpucloud-bench-") as directory:
        state = State.at(Path(directory) / "state")
        with embedded.services(state.root, durable=False) as running:
            commands = Commands(state, port=1, database_url=running.database_url, redis_url=running.redis_url)
            os.environ.update(commands.control_plane | {"THROTTLE_PER_SECOND": "0", "ALLOWED_HOSTS": "testserver"})
            import django  # noqa: PLC0415 - the settings read the environment that was just made

            django.setup()
            print_report("utilization", measure(arguments))


def measure(arguments: argparse.Namespace) -> list[Row]:
    """A row for each question."""
    from benchmarks.telemetry.filling import fill  # noqa: PLC0415 - models, once apps are loaded
    from tests.cast import Api  # noqa: PLC0415 - likewise

    filled = fill(-(-arguments.gpus // GPUS_PER_NODE))
    now = fill_levels(days=arguments.days, minute_days=arguments.minute_days)
    node = filled.nodes[len(filled.nodes) // 2]
    whom = {
        "one claim": f"claim={node.claims[0]}",
        "one GPU": f"gpu={node.gpus[0]}",
        "one node (8 GPUs)": f"node={node.name}",
        f"a tenant ({len(filled.nodes) * 16 // 4} assignments)": "tenant=team-0",
    }
    windows = {
        "2 hours": 1 / 12,
        "1 day": 1,
        "7 days": 7,
        f"{arguments.days} days": arguments.days,
        "10 days in the middle": -10,
    }
    return [
        ask(Api(filled.token), name, query, window, now, times=arguments.times)
        for name, query in whom.items()
        for window in windows.items()
    ]


def fill_levels(*, days: int, minute_days: int) -> datetime:
    """Rows for all levels up to the present hour, which is returned."""
    from django.db import connection  # noqa: PLC0415 - likewise
    from django.utils import timezone  # noqa: PLC0415 - likewise

    from apps.nodes.models import TelemetryMark  # noqa: PLC0415 - likewise
    from apps.nodes.services.telemetry import levels, partitions  # noqa: PLC0415 - likewise

    now = levels.floor(timezone.now(), levels.HOUR.span)
    month, week, evening = timedelta(days=days), timedelta(days=minute_days), timedelta(hours=TENS_HOURS)
    kept = {levels.TENS: evening, levels.MINUTE: week, levels.HOUR: month, levels.DAY: month}
    tables = {table.name: table for table in partitions.tables()}
    with connection.cursor() as cursor:
        for level, reach in kept.items():
            begin, end = (levels.floor(moment, level.span) for moment in (now - reach, now))
            for day in range(reach.days + 2):
                partitions.make(tables[level.table], begin + timedelta(days=day))
            statement = FILL.format(table=level.table, samples=int(level.span.total_seconds()))
            asked: dict[str, Any] = {"begin": begin, "end": end, "span": level.span}
            cursor.execute(statement, asked)
            print(f"{level.table}: {cursor.rowcount:,} rows", flush=True)
        TelemetryMark.objects.update_or_create(name="rolled", defaults={"at": now})
        cursor.execute("VACUUM ANALYZE")
    return now


def ask(api: Any, name: str, query: str, window: tuple[str, float], now: datetime, *, times: int) -> Row:
    """Ask so often; milliseconds. Each question moves its window a little, so that none is the same."""
    (words, days), found, points = window, [], 0
    for number in range(times + 1):
        end = now - timedelta(minutes=7 * number) - (timedelta(days=5) if days < 0 else timedelta())
        begin = end - timedelta(days=abs(days))
        started = time.perf_counter()
        answer = api.get(f"utilization/?{query}&from={begin:%Y-%m-%dT%H:%M:%SZ}&to={end:%Y-%m-%dT%H:%M:%SZ}")
        found.append((time.perf_counter() - started) * 1000)
        assert answer.status == 200, answer.body
        points = sum(len(series["times"]) for series in answer.body["series"])
    # The first finds nothing in memory.
    first, *rest = found
    return {
        "of": name, "window": words, "points": points, "first ms": first, "p50 ms": quantile(rest, 0.5),
        "p95 ms": quantile(rest, 0.95), "max ms": max(rest),
    }  # fmt: skip


if __name__ == "__main__":
    main()
