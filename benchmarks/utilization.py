"""`make bench-utilization`: the latency of `GET /utilization/` over roll-ups of a thousand GPUs and thirty days.

One statement a level creates the rows: each GPU with two assignments, minutes, hours and days for all the time, ten
seconds for two hours. Requests run through the whole of Django in this process, without a socket.
"""

import argparse
import json
import time
from datetime import datetime, timedelta
from typing import Any

from benchmarks.api.cpu import seconds_below
from benchmarks.own_services import own_services
from benchmarks.report import Row, print_report, quantile
from gpucloud.fastpath import gc_tuning

GPUS_PER_NODE = 8
TENS_HOURS = 2
# In the order of the key, so that its index grows at its end only.
SERIES = """
CREATE TEMP TABLE series AS
SELECT gpu.node_id, named.* FROM nodes_gpu AS gpu
JOIN (SELECT gpu_id, uid FROM scheduling_assignment
      UNION ALL SELECT id, '00000000-0000-0000-0000-000000000000' FROM nodes_gpu) AS named ON named.gpu_id = gpu.id
ORDER BY gpu.node_id, gpu.id, named.uid
"""
# Rows of one statement, with a flush to disk between them.
AT_ONCE = 500_000
FILL = """
INSERT INTO {table}
SELECT at, series.node_id, series.gpu_id, series.uid, {samples},
    40 + 30 * sin(series.gpu_id + extract(epoch FROM at) / 7000), 90, 50, 3, 20000000000 + series.gpu_id, 30000000000,
    40000000000, 400.0 * {samples}, 240, 65
FROM generate_series(%(begin)s::timestamptz, %(end)s::timestamptz - %(span)s::interval, %(span)s::interval) AS at
CROSS JOIN series
"""


def main() -> None:
    """Fill, ask, print."""
    parser = argparse.ArgumentParser(prog="make bench-utilization", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gpus", type=int, default=1000, help="GPUs, 8 on a node (1000)")
    parser.add_argument("--days", type=int, default=30, help="days of roll-ups (30)")
    parser.add_argument("--minute-days", type=int, default=3, help="days of these for which there are minutes, too (3)")
    parser.add_argument("--times", type=int, default=20, help="how often each question is asked (20)")
    arguments = parser.parse_args()
    with own_services(durable=False, ALLOWED_HOSTS="testserver") as running:
        import django  # noqa: PLC0415 - the settings read the environment that was just made

        django.setup()
        print_report("utilization", measure(arguments, running.pids["postgres"]))


def measure(arguments: argparse.Namespace, database: int) -> list[Row]:
    """Return a row for each query."""
    from benchmarks.telemetry.filling import fill  # noqa: PLC0415 - models, once apps are loaded

    filled = fill(-(-arguments.gpus // GPUS_PER_NODE))
    now = fill_levels(days=arguments.days, minute_days=arguments.minute_days)
    # As the server does, whose role this process has.
    gc_tuning.freeze_startup_objects()
    node = filled.nodes[len(filled.nodes) // 2]
    whom = {
        "one claim": f"claim={node.claims[0]}",
        "one GPU": f"gpu={node.gpus[0]}",
        "one node (8 GPUs)": f"node={node.name}",
        f"a tenant ({len(filled.nodes) * 16 // 4} assignments)": "tenant=team-0",
    }
    windows = {
        "2 hours": 1 / 12,
        "12 hours": 0.5,
        "1 day": 1,
        "6 hours": 0.25,
        "7 days": 7,
        f"{arguments.days} days": arguments.days,
        "10 days in the middle": -10,
    }
    return [
        ask(filled.token, name, query, window, now, times=arguments.times, database=database)
        for name, query in whom.items()
        for window in windows.items()
    ]


def fill_levels(*, days: int, minute_days: int) -> datetime:
    """Create rows for all levels up to the present hour, and return that hour."""
    from django.db import connection  # noqa: PLC0415 - likewise
    from django.utils import timezone  # noqa: PLC0415 - likewise

    from apps.nodes.models import TelemetryMark  # noqa: PLC0415 - likewise
    from apps.nodes.services.telemetry import levels, partitions  # noqa: PLC0415 - likewise

    now = levels.floor(timezone.now(), levels.HOUR.span)
    month, week, evening = timedelta(days=days), timedelta(days=minute_days), timedelta(hours=TENS_HOURS)
    kept = {levels.TENS: evening, levels.MINUTE: week, levels.HOUR: month, levels.DAY: month}
    tables = {table.name: table for table in partitions.tables()}
    with connection.cursor() as cursor:
        cursor.execute(SERIES)
        for level, reach in kept.items():
            begin, end = (levels.floor(moment, level.span) for moment in (now - reach, now))
            for day in range(reach.days + 2):
                partitions.make(tables[level.table], begin + timedelta(days=day))
            _fill(level.table, begin, end, level.span)
        TelemetryMark.objects.update_or_create(name="rolled", defaults={"at": now})
        cursor.execute("VACUUM ANALYZE")
    return now


def _fill(table: str, begin: datetime, end: datetime, span: timedelta) -> None:
    from django.db import connection  # noqa: PLC0415 - likewise

    statement = FILL.format(table=table, samples=int(span.total_seconds()))
    started, rows = time.monotonic(), 0
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM series")
        (series,) = cursor.fetchone() or (1,)
        moments = max(1, AT_ONCE // series)
        while begin < end:
            until = min(end, begin + moments * span)
            asked: dict[str, Any] = {"begin": begin, "end": until, "span": span}
            cursor.execute(statement, asked)
            rows += cursor.rowcount
            begin = until
    print(f"{table}: {rows:,} rows in {time.monotonic() - started:.0f} s", flush=True)


def ask(
    token: str, name: str, query: str, window: tuple[str, float], now: datetime, *, times: int, database: int
) -> Row:
    """Send the query repeatedly; return milliseconds.

    Each request shifts its window a little, so that none is the same.
    """
    from django.test import Client  # noqa: PLC0415 - likewise

    client = Client(headers={"authorization": f"Bearer {token}"})
    (words, days), found, own = window, [], 0.0
    before, text = seconds_below(database), b""
    for number in range(times + 1):
        end = now - timedelta(minutes=7 * number) - (timedelta(days=5) if days < 0 else timedelta())
        begin = end - timedelta(days=abs(days))
        url = f"/api/v1/utilization/?{query}&from={begin:%Y-%m-%dT%H:%M:%SZ}&to={end:%Y-%m-%dT%H:%M:%SZ}"
        started, spent = time.perf_counter(), time.process_time()
        answer = client.get(url)
        text = answer.content
        found.append((time.perf_counter() - started) * 1000)
        own += time.process_time() - spent
        assert answer.status_code == 200, text
    points = sum(len(series["times"]) for series in json.loads(text)["series"])
    # The first request finds empty caches.
    first, *rest = found
    return {
        "of": name, "window": words, "points": points, "kB": len(text) / 1000, "first ms": first,
        "p50 ms": quantile(rest, 0.5), "p95 ms": quantile(rest, 0.95), "max ms": max(rest),
        "Django CPU ms": own * 1000 / (times + 1),
        "database CPU ms": (seconds_below(database) - before) * 1000 / (times + 1),
    }  # fmt: skip


if __name__ == "__main__":
    main()
