"""`python -m benchmarks.api.answers`: processor time of one process for each answer, of several versions of the code.

Each version runs in a process of its own over the same database, and the processes take turns, so that a busy machine
disturbs all of them alike. Requests enter by the ASGI application, without HTTP's parser. `--trees` names checkouts of
the repository; one that needs other migrations cannot be compared.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# The checkout that a process measures comes before the one of this file.
HERE = Path(__file__).resolve()
PATHS = (
    "claims/{uid}/", "claims/?limit=50", "claims/?limit=50&state=active", "claims/?limit=50&live=true",
    "assignments/?limit=50", "assignments/?limit=50&state=in_force", "quotas/?limit=50",
)  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.api.answers")
    parser.add_argument("--trees", default=str(HERE.parents[2]), help="checkouts, with commas (this one)")
    parser.add_argument("--rounds", type=int, default=11, help="of each request and checkout (11)")
    parser.add_argument("--each", type=int, default=40, help="requests of a round (40)")
    parser.add_argument("--history", type=int, default=3_000, help="released claims in the database (3,000)")
    parser.add_argument("--profile", default="", help="the request to profile instead")
    arguments = parser.parse_args()
    trees = [Path(tree).resolve() for tree in arguments.trees.split(",")]
    with tempfile.TemporaryDirectory(prefix="gpucloud-bench-") as directory:
        compare(Path(directory), trees, arguments)


def compare(directory: Path, trees: list[Path], arguments: Any) -> None:
    """Fill a database, and let the versions answer in turn."""
    from benchmarks.api.stage import filled  # noqa: PLC0415 - a measured process has no such module

    with filled(directory, clients=4, tenants=4, history=arguments.history) as ready:
        asked = [path.format(uid=ready.claims[0]) for path in PATHS]
        if arguments.profile:
            asked = [path for path in asked if arguments.profile in path][:1]
        versions = [
            start(tree, ready.tokens[0], each=arguments.each, profiled=bool(arguments.profile)) for tree in trees
        ]
        found: dict[tuple[int, str], list[float]] = {}
        for _ in range(arguments.rounds):
            for path in asked:
                for number, version in enumerate(versions):
                    found.setdefault((number, path), []).append(measure(version, path))
        for version in versions:
            print(stop(version), end="")
        if not arguments.profile:
            print_costs(trees, asked, found)


def print_costs(trees: list[Path], asked: list[str], found: dict[tuple[int, str], list[float]]) -> None:
    """Print median and least of each request's rounds, and the ratio of the medians to the first request."""
    from benchmarks.report import quantile  # noqa: PLC0415 - as above

    for number, tree in enumerate(trees):
        print(f"\n{tree}\n| request | median ms | least | most | to the first |\n| --- | --- | --- | --- | --- |")
        first = quantile(found[number, asked[0]], 0.5)
        for path in asked:
            costs = found[number, path]
            middle = quantile(costs, 0.5)
            print(f"| `{path}` | {middle:.2f} | {min(costs):.2f} | {max(costs):.2f} | {middle / first:.2f} |")


def start(tree: Path, token: str, *, each: int, profiled: bool = False) -> Any:
    """Start a process that answers requests of this token by the code of a checkout."""
    command = [sys.executable, str(HERE), "answer", token, str(each), "profile" if profiled else ""]
    python_path = f"{tree}:{tree / 'cli'}"
    environment = os.environ | {"PYTHONPATH": python_path, "PYTHONSAFEPATH": "1", "DATABASE_POOL_SIZE": "8"}
    return subprocess.Popen(
        command, cwd=tree, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )


def stop(version: Any) -> str:
    """End the process; return what else it printed."""
    version.stdin.close()
    printed: str = version.stdout.read()
    version.wait()
    return printed


def measure(version: Any, path: str) -> float:
    """Return the milliseconds of processor time that a request for the path takes."""
    version.stdin.write(f"{path}\n")
    return float(version.stdout.readline())


def answer(token: str, each: int, profiled: str) -> None:
    """Answer to each line with a path: the milliseconds of processor time that a request for it takes."""
    import logging  # noqa: PLC0415 - only here

    from gpucloud.asgi import application  # noqa: PLC0415 - the checkout's

    logging.disable(logging.CRITICAL)
    loop = asyncio.new_event_loop()
    for line in sys.stdin:
        loop.run_until_complete(_ask(application, line.strip(), token, 5))
        if profiled:
            _profile(loop, application, line.strip(), token, each)
        before = time.process_time()
        loop.run_until_complete(_ask(application, line.strip(), token, each))
        print((time.process_time() - before) * 1000 / each, flush=True)


async def _ask(application: Any, path: str, token: str, times: int) -> None:
    """Ask several times. Raises AssertionError if an answer is not 200."""
    name, _, query = path.partition("?")
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
        "path": f"/api/v1/{name}", "raw_path": f"/api/v1/{name}".encode(), "query_string": query.encode(),
        "headers": [(b"host", b"127.0.0.1"), (b"authorization", f"Bearer {token}".encode())],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "root_path": "",
    }  # fmt: skip
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    for _ in range(times):
        await application(dict(scope), receive, send)
    assert set(statuses) == {200}, statuses


def _profile(loop: Any, application: Any, path: str, token: str, each: int) -> None:
    """Print a profile of the threads that answer, to standard error."""
    import cProfile  # noqa: PLC0415 - only here
    import pstats  # noqa: PLC0415 - only here

    from gpucloud.fastpath.serving import SingleThreadHandler  # noqa: PLC0415 - the checkout's

    profile = cProfile.Profile()
    respond: Any = vars(SingleThreadHandler)["_respond"]
    name = "_respond"
    setattr(SingleThreadHandler, name, lambda *given: profile.runcall(respond, *given))
    loop.run_until_complete(_ask(application, path, token, each))
    setattr(SingleThreadHandler, name, respond)
    shown = pstats.Stats(profile, stream=sys.stderr)
    shown.sort_stats("tottime").print_stats(45)
    shown.sort_stats("cumulative").print_stats(70)


if __name__ == "__main__":
    if sys.argv[1:2] == ["answer"]:
        answer(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        main()
