"""`make bench-stores`: seconds of telemetry in PostgreSQL and in ClickHouse's engine: cost of storing, disk, answers.

The same frames go into both: into PostgreSQL by COPY and INSERT as the server stores them, a second of all nodes in a
transaction, and into ClickHouse, with arrays for each frame, too. Then both sum up ten seconds, and both draw a chart,
whose points must be equal.

ClickHouse runs in this process: `pip install chdb-core` (560 MB; no requirement of the project). Processor time is that
of PostgreSQL's backend and of all of ClickHouse's threads, merges too.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks.own_services import own_services
from benchmarks.report import Row, print_report

GPUS, ASSIGNMENTS = 8, 16
TICKS = os.sysconf("SC_CLK_TCK")
# Values drift and are noisy, as measured ones are: constant ones would be compressed to nothing.
GENERATE = """
INSERT INTO nodes_usageframe (node_id, at, seq, gpu_ids, gpu_core, gpu_memory, gpu_watts, gpu_celsius, gpu_sm_mhz,
    gpu_memory_mhz, uids, on_gpus, core, core_limit, throttled, memory, memory_limit, processes, gpu_time_ms, launches)
SELECT node, %(at)s, %(seq)s,
    ARRAY(SELECT node * 8 + gpu FROM generate_series(0, 7) gpu),
    ARRAY(SELECT (50 + 30 * sin(node + gpu + %(seq)s / 60.0) + 8 * random())::numeric(5, 1) FROM generate_series(0, 7) gpu),
    ARRAY(SELECT (20000 + 1000 * ((node + gpu + %(seq)s / 30) %% 9)) * 1048576::bigint FROM generate_series(0, 7) gpu),
    ARRAY(SELECT (250 + 60 * random())::numeric(5, 1) FROM generate_series(0, 7) gpu),
    ARRAY(SELECT round(60 + 4 * random()) FROM generate_series(0, 7) gpu),
    ARRAY(SELECT 1410 - 15 * round(3 * random()) FROM generate_series(0, 7) gpu),
    array_fill(1593, ARRAY[8]),
    ARRAY(SELECT md5((node * 16 + item)::text)::uuid FROM generate_series(0, 15) item),
    ARRAY(SELECT node * 8 + item / 2 FROM generate_series(0, 15) item),
    ARRAY(SELECT (25 + 15 * sin(node + item + %(seq)s / 60.0) + 4 * random())::numeric(5, 1) FROM generate_series(0, 15) item),
    array_fill(50::smallint, ARRAY[16]),
    ARRAY(SELECT CASE WHEN random() < 0.1 THEN (20 * random())::numeric(5, 1) ELSE 0 END FROM generate_series(0, 15) item),
    ARRAY(SELECT (10000 + 500 * ((node + item + %(seq)s / 30) %% 9)) * 1048576::bigint FROM generate_series(0, 15) item),
    array_fill(17179869184::bigint, ARRAY[16]),
    array_fill(1, ARRAY[16]),
    ARRAY(SELECT (250 + 50 * random())::numeric(5, 1) FROM generate_series(0, 15) item),
    ARRAY(SELECT (1000 + 100 * random())::numeric(6, 1) FROM generate_series(0, 15) item)
FROM generate_series(1, %(nodes)s) AS node
"""  # noqa: E501 - a line is a column
FRAMES = """
CREATE TABLE frames (
    node_id UInt32, at DateTime64(6, 'UTC') CODEC(DoubleDelta, ZSTD), seq UInt64 CODEC(DoubleDelta, ZSTD),
    gpu_ids Array(Int64) CODEC(ZSTD), gpu_core Array(Float32) CODEC(ZSTD), gpu_memory Array(Int64) CODEC(ZSTD),
    gpu_watts Array(Nullable(Float32)) CODEC(ZSTD), gpu_celsius Array(Nullable(Float32)) CODEC(ZSTD),
    gpu_sm_mhz Array(Nullable(Int32)) CODEC(ZSTD), gpu_memory_mhz Array(Nullable(Int32)) CODEC(ZSTD),
    uids Array(UUID) CODEC(ZSTD), on_gpus Array(Int64) CODEC(ZSTD), core Array(Float32) CODEC(ZSTD),
    core_limit Array(Nullable(Int16)) CODEC(ZSTD), throttled Array(Nullable(Float32)) CODEC(ZSTD),
    memory Array(Int64) CODEC(ZSTD), memory_limit Array(Nullable(Int64)) CODEC(ZSTD),
    processes Array(Nullable(Int32)) CODEC(ZSTD), gpu_time_ms Array(Nullable(Float32)) CODEC(ZSTD),
    launches Array(Nullable(Float32)) CODEC(ZSTD)
) ENGINE = ReplacingMergeTree ORDER BY (node_id, at, seq) PARTITION BY toStartOfHour(at)
"""
TENS = """
CREATE TABLE tens ENGINE = MergeTree ORDER BY (bin, node_id, gpu, one) AS
SELECT toStartOfInterval(at, INTERVAL 10 SECOND) AS bin, node_id, gpu, one, count() AS samples, avg(used) AS mean,
    max(used) AS most, avg(slowed) AS throttled, avg(bytes) AS memory, max(bytes) AS memory_most
FROM (
    SELECT at, node_id, one, gpu, used, slowed, bytes
    FROM frames ARRAY JOIN uids AS one, on_gpus AS gpu, core AS used, throttled AS slowed, memory AS bytes
    UNION ALL
    SELECT at, node_id, toUUID('00000000-0000-0000-0000-000000000000'), gpu, used, NULL, bytes
    FROM frames ARRAY JOIN gpu_ids AS gpu, gpu_core AS used, gpu_memory AS bytes
) GROUP BY bin, node_id, gpu, one
"""
CHART = """
SELECT toUnixTimestamp(toStartOfInterval(at, INTERVAL 5 SECOND)) AS bin, avg(used), avg(bytes) / 1048576
FROM frames ARRAY JOIN gpu_ids AS gpu, gpu_core AS used, gpu_memory AS bytes
WHERE node_id = {node} AND gpu = {gpu} GROUP BY bin ORDER BY bin
"""
NOW = """
SELECT intDiv(node_id, 1000) AS pool, count(), sum(core) FROM (
    SELECT node_id, arrayJoin(argMax(gpu_core, at)) AS core FROM frames WHERE at >= toDateTime64('{since}', 6, 'UTC')
    GROUP BY node_id
) GROUP BY pool ORDER BY pool
"""


def main() -> None:
    """Store, ask, compare, print."""
    parser = argparse.ArgumentParser(prog="make bench-stores", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", default="1000,10000", help="sizes of the fleet (1000,10000)")
    parser.add_argument(
        "--seconds", type=int, default=60, help="of frames at the first size; fewer of larger ones (60)"
    )
    arguments = parser.parse_args()
    with own_services(durable=True), tempfile.TemporaryDirectory(prefix="gpucloud-bench-") as directory:
        import django  # noqa: PLC0415 - the settings read the environment that was just made

        django.setup()
        from django.core.management import call_command  # noqa: PLC0415 - once apps are loaded

        call_command("migrate", verbosity=0)
        sizes = [int(size) for size in arguments.nodes.split(",")]
        rows = []
        for size in sizes:
            seconds = max(10, arguments.seconds * sizes[0] // size)
            rows += measure(size, seconds, Path(directory) / str(size))
        print_report("stores", rows)


def measure(nodes: int, seconds: int, directory: Path) -> list[Row]:
    """Return a row for each store."""
    directory.mkdir()
    begin = datetime.now(UTC).replace(microsecond=0) - timedelta(seconds=seconds + 60)
    begin -= timedelta(seconds=begin.second % 10)
    files = generate(nodes, seconds, begin, directory)
    frames = nodes * seconds
    found = [in_postgres(nodes, seconds, begin, files), in_clickhouse(nodes, begin, files, directory)]
    points = [row.pop("points") for row in found]
    assert points[0] == points[1], "the stores draw different charts"
    hour = 3600 * nodes / frames
    for row in found:
        row["GB an hour"] = row.pop("bytes") * hour / 1e9
        row["storing, ms of a core a thousand frames"] = row.pop("stored") * 1e6 / frames
        row["frames a second of a core"] = 1000 / row["storing, ms of a core a thousand frames"] * 1000
        row["tens, ms of a core a thousand frames"] = row.pop("rolled") * 1e6 / frames
    return [{"nodes": nodes, "seconds": seconds, **row} for row in found]


def generate(nodes: int, seconds: int, begin: datetime, directory: Path) -> list[tuple[Path, Path]]:
    """Write each second as a file for COPY and as one of JSON lines."""
    from django.db import connection  # noqa: PLC0415 - once apps are loaded

    from apps.nodes.services.telemetry import partitions  # noqa: PLC0415 - likewise

    partitions.keep_up()
    files = []
    with connection.cursor() as cursor:
        copying: Any = cursor
        for second in range(seconds):
            cursor.execute("TRUNCATE nodes_usageframe")
            cursor.execute(GENERATE, {"at": begin + timedelta(seconds=second), "seq": second + 1, "nodes": nodes})
            pair = directory / f"{second}.copy", directory / f"{second}.json"
            for path, how in zip(pair, (
                "COPY (SELECT * FROM nodes_usageframe) TO STDOUT (FORMAT BINARY)",
                "COPY (SELECT row_to_json(f) FROM nodes_usageframe f) TO STDOUT",
            ), strict=True):  # fmt: skip
                with path.open("wb") as file, copying.copy(how) as copy:
                    for piece in copy:
                        file.write(piece)
            files.append(pair)
        cursor.execute("TRUNCATE nodes_usageframe")
    return files


def in_postgres(nodes: int, seconds: int, begin: datetime, files: list[tuple[Path, Path]]) -> Row:
    """Store the frames as the server does; return its costs and the chart's points."""
    from django.db import connection, transaction  # noqa: PLC0415 - once apps are loaded

    from apps.nodes.services.telemetry import partitions, rolling, storing  # noqa: PLC0415 - likewise
    from apps.nodes.services.telemetry.levels import EPOCH, RAW, TENS  # noqa: PLC0415 - likewise
    from apps.nodes.services.telemetry.reading import Series, Window, now_of_gpus, window  # noqa: PLC0415 - likewise

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone() or (0,)
    stored = 0.0
    for path, _ in files:
        data = path.read_bytes()
        with transaction.atomic(), connection.cursor() as cursor, counted(pid) as cost:
            cursor.execute(storing.STAGE)
            copying: Any = cursor
            with copying.copy(storing.COPY) as copy:
                copy.write(data)
            cursor.execute(storing.KEEP)
        stored += cost[0]
    table = next(table for table in partitions.tables() if table.name == RAW.table)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_total_relation_size(%s)", [table.partition(table.bounds(begin)[0])])
        (size,) = cursor.fetchone() or (0,)
    end = begin + timedelta(seconds=seconds)
    with counted(pid) as rolled:
        rolling._write(rolling.SECONDS_TO_TENS, TENS, begin, end, None)  # noqa: SLF001 - this step alone
    asked = Window(begin, end, timedelta(seconds=5), datetime.now(UTC), EPOCH)
    series = Series(nodes // 2, nodes // 2 * 8 + 3)
    (curve,), chart = timed(lambda: window([series], asked))
    _, now = timed(
        lambda: now_of_gpus(range(1, nodes + 1), since=end - timedelta(seconds=5), mean=timedelta(seconds=1))
    )
    points = [[int(at), round(core, 2), round(mib)] for at, core, mib in zip(
        curve.times, curve.core_percent, curve.memory_mib, strict=True)]  # fmt: skip
    return {
        "store": "PostgreSQL", "stored": stored, "bytes": size, "rolled": rolled[0], "chart ms": chart, "now ms": now,
        "points": points,
    }  # fmt: skip


def in_clickhouse(nodes: int, begin: datetime, files: list[tuple[Path, Path]], directory: Path) -> Row:
    """Store the frames in ClickHouse; return its costs and the chart's points."""
    from chdb.session import Session  # type: ignore[import-not-found] # noqa: PLC0415 - only here, and not required

    session = Session(str(directory / "clickhouse"))
    session.query("CREATE DATABASE IF NOT EXISTS bench ENGINE = Atomic")
    session.query("USE bench")
    session.query(FRAMES)
    session.query("CREATE TABLE incoming AS frames ENGINE = Memory")
    stored = 0.0
    for _, path in files:
        # The server would send binary rows: reading JSON is not counted.
        session.query("TRUNCATE TABLE incoming")
        session.query(f"INSERT INTO incoming SELECT * FROM file('{path}', 'JSONEachRow')")  # noqa: S608 - our own path
        with counted() as cost:
            session.query("INSERT INTO frames SELECT * FROM incoming")
        stored += cost[0]
    with counted() as merged:
        session.query("OPTIMIZE TABLE frames FINAL")
    sizes = "SELECT sum(bytes_on_disk) FROM system.parts WHERE table = 'frames' AND active"
    size = int(str(session.query(sizes, "CSV")).strip())
    with counted() as rolled:
        session.query(TENS)
    text, chart = timed(
        lambda: str(session.query(CHART.format(node=nodes // 2, gpu=nodes // 2 * 8 + 3), "JSONCompact"))
    )
    since = begin + timedelta(seconds=len(files) - 5)
    _, now = timed(lambda: session.query(NOW.format(since=f"{since:%F %T}"), "CSV"))
    points = [[int(at), round(core, 2), round(mib)] for at, core, mib in json.loads(text)["data"]]
    session.close()
    return {
        "store": "ClickHouse", "stored": stored + merged[0], "bytes": size, "rolled": rolled[0], "chart ms": chart,
        "now ms": now, "points": points,
    }  # fmt: skip


@contextmanager
def counted(pid: int | None = None) -> Iterator[list[float]]:
    """Yield a list that holds afterwards the processor seconds of this process, or of another one."""
    cost, before = [0.0], _seconds(pid)
    yield cost
    cost[0] = _seconds(pid) - before


def _seconds(pid: int | None) -> float:
    if pid is None:
        return time.process_time()
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def timed(ask: Any) -> tuple[Any, float]:
    """Return an answer, and the least milliseconds of five times."""
    found = []
    for _ in range(5):
        begun = time.perf_counter()
        ask()
        found.append(1000 * (time.perf_counter() - begun))
    return ask(), min(found)


if __name__ == "__main__":
    main()
