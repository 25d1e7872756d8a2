"""`make bench-api`: requests a second and latencies of one server with two workers, with durable commits.

PostgreSQL with its own durable settings, the server, its two workers and the clients share the machine; the clients are
in one process, whose CPU time has its own column.
"""

import argparse
import itertools
import json
import resource
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path

from benchmarks.api.cpu import seconds_below
from benchmarks.api.load import Measured, drive
from benchmarks.api.stage import Stage, stage
from benchmarks.report import Row, print_report, quantile

CLIENTS = 16
TENANTS = 4
LISTED = ("claims/?limit=50", "claims/?limit=50&state=active", "assignments/?limit=50", "quotas/?limit=50")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="make bench-api", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="of each row (10)")
    parser.add_argument("--runs", type=int, default=3, help="of each row (3)")
    parser.add_argument("--history", type=int, default=100_000, help="claims in the database before (100,000)")
    parser.add_argument(
        "--clients", type=int, default=CLIENTS, help="connections, each with one request at a time (16)"
    )
    parser.add_argument("--only", default="", help="rows whose name holds this word")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpucloud-bench-") as directory:
        print(f"starting the server over {arguments.history:,} released claims …", flush=True)
        with stage(Path(directory), clients=arguments.clients, tenants=TENANTS, history=arguments.history) as ready:
            kinds = {name: kind for name, kind in requests(ready).items() if arguments.only in name}
            rows = [
                measure(ready, name, kind, clients=arguments.clients, seconds=arguments.seconds)
                for name, kind in kinds.items()
                for _ in range(arguments.runs)
            ]
    print_report("api", rows)


def requests(ready: Stage) -> dict[str, Callable[[int], bytes]]:
    """Return the requests of each row's clients, by the row's name."""
    uids = itertools.cycle(ready.claims)
    kinds: dict[str, Callable[[int], bytes]] = {
        "GET claims/{uid}/": lambda client: request(
            "GET",
            f"claims/{next(uids)}/",
            ready.tokens[client - client % TENANTS],
        ),
        "POST claims/, 4 tenants": lambda client: post(ready, client),
        "POST claims/, 1 tenant": lambda client: post(ready, client - client % TENANTS),
        "POST claims/, Idempotency-Key": lambda client: post(ready, client, f"Idempotency-Key: {uuid.uuid4()}\r\n"),
    }
    for path in LISTED:
        kinds[f"GET {path}"] = lambda client, path=path: request("GET", path, ready.tokens[client])  # type: ignore[misc]
    return kinds


def post(ready: Stage, client: int, extra: str = "") -> bytes:
    """Return a small claim of the client's tenant."""
    body = {"tenant": ready.tenants[client % TENANTS], "name": "bench", "core_request": 10, "memory_mib": 1024}
    return request("POST", "claims/", ready.tokens[client], json.dumps(body), extra)


def request(method: str, path: str, token: str, body: str = "", extra: str = "") -> bytes:
    """Return a request's bytes in HTTP/1.1."""
    kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
    head = f"{method} /api/v1/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
    return f"{head}{kind}{extra}\r\n{body}".encode()


def measure(ready: Stage, name: str, kind: Callable[[int], bytes], *, clients: int, seconds: float) -> Row:
    """Measure one run.

    Raises AssertionError if an answer is not a success.
    """
    before = cpu_seconds(ready)
    measured = drive(ready.port, kind, clients=clients, seconds=seconds)
    after = cpu_seconds(ready)
    assert set(measured.statuses) <= {200, 201}, measured.statuses
    cpu_ms = {who: (after[who] - before[who]) * 1000 / measured.asked for who in after}
    return row(name, measured, cpu_ms)


def row(name: str, measured: Measured, cpu_ms: dict[str, float]) -> Row:
    """Return the figures of one run."""
    return {
        "request": name,
        "per second": measured.per_second,
        "p50 ms": quantile(measured.latencies_ms, 0.50),
        "p95 ms": quantile(measured.latencies_ms, 0.95),
        "p99 ms": quantile(measured.latencies_ms, 0.99),
        "max ms": max(measured.latencies_ms),
        **{f"{who} CPU ms": each for who, each in cpu_ms.items()},
    }


def cpu_seconds(ready: Stage) -> dict[str, float]:
    """Return the CPU seconds of all processes so far."""
    seconds = {who: seconds_below(pid) for who, pid in ready.pids.items()}
    used = resource.getrusage(resource.RUSAGE_SELF)
    return seconds | {"clients": used.ru_utime + used.ru_stime}


if __name__ == "__main__":
    main()
