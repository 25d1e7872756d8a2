"""`python -m benchmarks.audit_chain`: the cost of chaining the audit log to its writers, at the insert or by a sealer.

Eight writers commit transactions like those of the API: they change a row of their own, write the event, and spend the
rest of the transaction (a few statements' time) until the commit, on a durable PostgreSQL. *none* chains nothing; *at
insert* takes a lock, reads the last digest, writes the next one, and holds the lock until the commit; *sealer* chains
nothing at the insert, while another connection chains committed events every second.
"""

import argparse
import hashlib
import tempfile
import threading
import time
from pathlib import Path

import psycopg

from benchmarks.report import Row, print_report, quantile
from deploy import embedded

WRITERS = 8
# Time from the audit row to the commit: the other statements of a claim's transaction.
REST_SECONDS = 0.003
TABLES = """
DROP TABLE IF EXISTS bench_event, bench_own;
CREATE TABLE bench_own (id int PRIMARY KEY, used int NOT NULL DEFAULT 0);
CREATE TABLE bench_event (id bigserial PRIMARY KEY, content jsonb NOT NULL, position bigint UNIQUE, digest text);
CREATE INDEX ON bench_event (id) WHERE position IS NULL;
"""
LAST = "SELECT position, digest FROM bench_event WHERE position IS NOT NULL ORDER BY position DESC LIMIT 1"
CONTENT = '{"action": "claim.create", "after": {"core_request": 30, "memory_mib": 8192}}'


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="audit_chain", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="for each of the three (10)")
    seconds = parser.parse_args().seconds
    with (
        tempfile.TemporaryDirectory(prefix="gpucloud-bench-") as directory,
        embedded.services(Path(directory), durable=True) as running,
    ):
        print_report(
            "audit-chain", [measure(running.database_url, how, seconds) for how in ("none", "at insert", "sealer")]
        )


def measure(url: str, how: str, seconds: float) -> Row:
    """Return transactions a second and their durations in milliseconds."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(TABLES)
        connection.execute("INSERT INTO bench_own SELECT generate_series(0, %s)", [WRITERS])
    took: list[float] = []
    end = time.monotonic() + seconds
    threads = [threading.Thread(target=write, args=(url, how, number, end, took)) for number in range(WRITERS)]
    if how == "sealer":
        threads.append(threading.Thread(target=seal, args=(url, end)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "chained": how,
        "per_second": len(took) / seconds,
        "p50_ms": quantile(took, 0.5) * 1000,
        "p99_ms": quantile(took, 0.99) * 1000,
    }


def write(url: str, how: str, number: int, end: float, took: list[float]) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        while (begun := time.monotonic()) < end:
            with connection.transaction():
                connection.execute("UPDATE bench_own SET used = used + 1 WHERE id = %s", [number])
                values: tuple[int | None, str | None] = (None, None)
                if how == "at insert":
                    connection.execute("SELECT pg_advisory_xact_lock(1)")
                    values = next_link(connection.execute(LAST).fetchone(), CONTENT)
                connection.execute(
                    "INSERT INTO bench_event (content, position, digest) VALUES (%s, %s, %s)", [CONTENT, *values]
                )
                time.sleep(REST_SECONDS)
            took.append(time.monotonic() - begun)


def seal(url: str, end: float) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        while time.monotonic() < end:
            time.sleep(1)
            with connection.transaction():
                rows = connection.execute(
                    "SELECT id, content::text FROM bench_event WHERE position IS NULL ORDER BY id"
                )
                last = connection.execute(LAST).fetchone()
                sealed = [(key, *(last := next_link(last, content))) for key, content in rows.fetchall()]
                connection.execute(
                    "UPDATE bench_event AS event SET position = seal.position, digest = seal.digest "
                    "FROM unnest(%s::bigint[], %s::bigint[], %s::text[]) AS seal (id, position, digest) "
                    "WHERE event.id = seal.id",
                    [list(column) for column in zip(*sealed, strict=True)] if sealed else [[], [], []],
                )


def next_link(last: tuple[int, str] | None, content: str) -> tuple[int, str]:
    """Return the next sequence number and digest."""
    position, digest = last or (0, "")
    return position + 1, hashlib.sha256(f"{digest}{position + 1}{content}".encode()).hexdigest()


if __name__ == "__main__":
    main()
