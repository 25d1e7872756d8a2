"""`make bench-scheduler`: from a claim's POST to its placement, all on one machine, durably.

PostgreSQL with its own durable settings, Valkey, the server and the scheduler run as `make demo` starts them; no agents
and no worker, so pushes stay in their queue. *Placements*: a queue of claims waits while there is no scheduler; counted
from the start of its first round to its last commit. *POST to assigned*: one claim at a time through the API, from
sending the request to the notice of the commit; on an idle system, and with a queue that does not fit.
"""

import argparse
import http.client
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.api.cpu import seconds_below
from benchmarks.report import Row, print_report, quantile
from benchmarks.telemetry.memory import mib_below
from deploy import embedded
from deploy.demo.programs import Commands
from deploy.demo.state import State
from deploy.embedded import processes
from tests.ports import free_port

BEAT_SECONDS = 2.0
# The first requests of a server import and connect.
WARM_UP = 20
LOST_SECONDS = 120.0
# A follower does what it does for so long before its leader is killed.
FOLLOWS_SECONDS = 3.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="make bench-scheduler", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--claims", type=int, default=10_000, help="in the queue (10,000)")
    parser.add_argument("--nodes", type=int, default=200, help="of eight GPUs each (200)")
    parser.add_argument("--posts", type=int, default=300, help="of single claims (300)")
    parser.add_argument("--runs", type=int, default=3, help="of the placements (3)")
    parser.add_argument("--takeovers", type=int, default=5, help="of a second scheduler, and of a new one (5)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpucloud-bench-") as directory, _services(Path(directory)) as bench:
        placed = [bench.placements(arguments.nodes, arguments.claims) for _ in range(arguments.runs)]
        alone = bench.posts("idle", arguments.nodes, 0, arguments.posts)
        behind = bench.posts("others wait", arguments.nodes, arguments.claims, arguments.posts)
        taken = bench.takeovers(arguments.nodes, arguments.takeovers) if arguments.takeovers else []
    print_report("scheduler", placed, [alone, behind], *([taken] if taken else []))


@contextmanager
def _services(directory: Path) -> Iterator["Bench"]:
    state = State.at(directory / "state")
    for name in ("DATABASE_URL", "REDIS_URL"):
        os.environ.pop(name, None)
    with embedded.services(state.root, durable=True) as running:
        commands = Commands(state, port=free_port(), database_url=running.database_url, redis_url=running.redis_url)
        # A benchmark sends more requests than the limit allows.
        commands.control_plane |= {"THROTTLE_PER_SECOND": "100000", "THROTTLE_BURST": "100000"}
        os.environ.update(commands.control_plane)
        import django  # noqa: PLC0415 - the settings read the environment that was just made

        django.setup()
        yield Bench(commands, running.pids["postgres"])


class Bench:
    """One database, filled for each row."""

    def __init__(self, commands: Commands, database_pid: int) -> None:
        from benchmarks.scheduler import filling  # noqa: PLC0415 - models, once apps are loaded

        self.filling, self.commands, self.database_pid = filling, commands, database_pid
        filling.migrate()

    def placements(self, nodes: int, claims: int) -> Row:
        """Measure one run in which everything fits, a tenth of a GPU each."""
        self.filling.fill(nodes=nodes, waiting=claims, core=10)
        with self._heartbeats(), self._program(self.commands.scheduler()) as scheduler:
            before = self._spent(scheduler)
            _until(lambda: self.filling.count_placed() == claims, "the queue to be placed")
            after = self._spent(scheduler)
        seconds = self.filling.seconds_of_rounds()
        self.filling.check()
        return {
            "queue": claims,
            "GPUs": nodes * 8,
            "rounds": self.filling.rounds(),
            "placed a second": claims / seconds,
            **{f"{who} CPU ms each": (after[who] - before[who]) * 1000 / claims for who in after},
        }

    def posts(self, when: str, nodes: int, waiting: int, count: int) -> Row:
        """Measure one claim at a time; the queued ones request whole GPUs, and none is free."""
        token = self.filling.fill(nodes=nodes, waiting=waiting, core=100, occupied=waiting > 0)
        server = self._program(self.commands.server())
        with self._heartbeats(), server, self._program(self.commands.scheduler()) as scheduler:
            _until(lambda: not self.filling.count_untried(), "the queue to be answered")
            for _ in range(WARM_UP):
                self._post(token)
            before = self._spent(scheduler)
            times = [self._post(token) for _ in range(count)]
            after = self._spent(scheduler)
        self.filling.check()
        return {
            "POST to assigned": when,
            "queue": waiting,
            "GPUs": nodes * 8,
            "p50 ms": quantile(times, 0.50),
            "p95 ms": quantile(times, 0.95),
            "p99 ms": quantile(times, 0.99),
            "max ms": max(times),
            "scheduler CPU ms each": (after["scheduler"] - before["scheduler"]) * 1000 / count,
        }

    def takeovers(self, nodes: int, count: int) -> list[Row]:
        """Kill the leader and post a claim; a follower takes over, or, as the control, a scheduler that starts then."""
        token = self.filling.fill(nodes=nodes, waiting=0, core=10)
        rows = []
        with self._heartbeats(), self._program(self.commands.server()):
            for who in ("a follower", "a new one"):
                times, sizes = [], []
                for _ in range(count):
                    seconds, mib = self._take_over(token, followed=who == "a follower")
                    times.append(seconds)
                    sizes.append(mib)
                rows.append({
                    "takes over": who, "GPUs": nodes * 8, "times": count, "p50 s": quantile(times, 0.5),
                    "max s": max(times), "scheduler MiB": max(sizes),
                })  # fmt: skip
        return rows

    def _take_over(self, token: str, *, followed: bool) -> tuple[float, float]:
        """Return the seconds from the kill to the placement of a claim that is posted right after it, and MiB."""
        first, second = (self.commands.scheduler(f"scheduler-{number}") for number in (1, 2))
        for program in (first, second):
            program.log.unlink(missing_ok=True)
        leader = processes.start(first)
        _until(lambda: "leading pool" in first.log.read_text(), "a leader")
        self._post(token)
        follower = processes.start(second) if followed else None
        if followed:
            _until(lambda: "following pool" in second.log.read_text(), "a follower")
            self._post(token)
            time.sleep(FOLLOWS_SECONDS)
        mib, killed = mib_below(leader.pid), time.monotonic()
        leader.kill()
        leader.wait()
        follower = follower or processes.start(second)
        self._post(token)
        seconds = time.monotonic() - killed
        processes.stop(second, follower)
        return seconds, mib

    def _post(self, token: str) -> float:
        body = json.dumps({"tenant": "team", "name": "single", "core_request": 5, "memory_mib": 16})
        head = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        with self.filling.listen() as listener:
            link = http.client.HTTPConnection("127.0.0.1", self.commands.port)
            link.connect()
            sent = time.perf_counter()
            link.request("POST", "/api/v1/claims/", body, head)
            answer = link.getresponse()
            claim = json.loads(answer.read())
            assert answer.status == 201, claim
            listener.until_assigned(claim["uid"], seconds=LOST_SECONDS)
            taken = time.perf_counter() - sent
            link.close()
        return taken * 1000

    def _spent(self, scheduler: int) -> dict[str, float]:
        return {"scheduler": seconds_below(scheduler), "database": seconds_below(self.database_pid)}

    @contextmanager
    def _program(self, program: processes.Program) -> Iterator[int]:
        process = processes.start(program)
        try:
            processes.wait_ready(program, process)
            yield process.pid
        finally:
            processes.stop(program, process)

    @contextmanager
    def _heartbeats(self) -> Iterator[None]:
        """Send the nodes' heartbeats."""
        stop = threading.Event()

        def beat() -> None:
            while not stop.wait(BEAT_SECONDS):
                self.filling.beat()
            self.filling.close()

        thread = threading.Thread(target=beat)
        self.filling.beat()
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def _until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + LOST_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.1)


if __name__ == "__main__":
    main()
