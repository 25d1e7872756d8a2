"""A supervisor thread that starts programs, watches them by pidfd, restarts those that exit, and stops all in order.

A restart waits 0.2 s after the first exit and twice as long after each further one, up to 15 s. After a program has run
for 5 s, its next restart waits 0.2 s again. The first wait is short because a program that was killed on purpose (by an
upgrade or a test) starts again at the first attempt.
"""

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from deploy.embedded import processes
from deploy.embedded.processes import Program, StartFailed

FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 15.0
SETTLED_SECONDS = 5.0


class StopRequested(Exception):
    """A stop of the launcher was requested during a wait."""


@dataclass(kw_only=True)
class Child:
    """A program and its current process.

    ``deaths`` counts those since it last ran for a while.
    """

    program: Program
    tier: int
    most_deaths: int | None
    process: subprocess.Popen[bytes] | None = None
    pidfd: int = -1
    begun: float = 0.0
    deaths: int = 0
    due: float | None = field(default=None)


class Supervisor:
    """Programs by name, in tiers that are stopped from the highest to the lowest.

    Use it from one thread that lives as long as the programs should (see ``tether.py``); only ``request_stop`` may be
    called from a signal handler or another thread.
    """

    def __init__(self, *, pids: Path, say: Callable[[str], None]) -> None:
        self._pids, self._say = pids, say
        self._children: dict[str, Child] = {}
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._stop_requested = False
        self._poll = select.poll()
        self._poll.register(self._wake_read, select.POLLIN)

    # Queries.

    def pids(self) -> dict[str, int]:
        """Return the pids of the running processes by the program's name, the launcher's own included."""
        running = {name: child.process.pid for name, child in self._children.items() if child.process is not None}
        return {"launcher": os.getpid(), **running}

    def request_stop(self) -> None:
        """Make a wait raise StopRequested soon."""
        self._stop_requested = True
        os.write(self._wake_write, b".")

    # Starting.

    def start(self, program: Program, *, tier: int, most_deaths: int | None = None) -> None:
        """Start the program and restart it when it dies, until ``most_deaths`` in a row."""
        child = Child(program=program, tier=tier, most_deaths=most_deaths)
        self._children[program.name] = child
        self._begin(child)

    def wait_ready(self, names: Iterable[str]) -> None:
        """Wait until all are ready.

        Raises StartFailed with the end of a log, or StopRequested.
        """
        for name in names:
            child = self._children[name]
            deadline = time.monotonic() + child.program.ready_seconds
            while not child.program.ready():
                if child.deaths:
                    raise StartFailed(f"{name} ended while starting:\n{processes.tail(child.program.log)}")
                if time.monotonic() > deadline:
                    late = f"{name} was not ready after {child.program.ready_seconds:.0f} s"
                    raise StartFailed(f"{late}:\n{processes.tail(child.program.log)}")
                self.watch(0.05)

    def run_to_end(self, program: Program, *, seconds: float) -> None:
        """Run a command once, and watch the programs meanwhile.

        Raises StartFailed if it fails or takes too long.
        """
        process = processes.start(program)
        deadline = time.monotonic() + seconds
        try:
            while process.poll() is None:
                if time.monotonic() > deadline:
                    raise StartFailed(
                        f"{program.name} took longer than {seconds:.0f} s:\n{processes.tail(program.log)}"
                    )
                self.watch(0.05)
        finally:
            processes.stop(program, process)
        if process.returncode != 0:
            raise StartFailed(f"{program.name} failed:\n{processes.tail(program.log)}")

    # Watching.

    def run(self) -> None:
        """Watch until a stop is requested."""
        try:
            while True:
                self.watch(60.0)
        except StopRequested:
            return

    def watch(self, seconds: float) -> None:
        """Wait for at most this long, handle deaths, start programs that are due.

        Raises StopRequested.
        """
        if self._stop_requested:
            raise StopRequested
        dues = [child.due for child in self._children.values() if child.due is not None]
        pause = min([seconds, *(max(0.0, due - time.monotonic()) for due in dues)])
        self._poll.poll(int(pause * 1000) + 1)
        if self._stop_requested:
            raise StopRequested
        for child in self._children.values():
            if child.process is not None and child.process.poll() is not None:
                self._bury(child)
            elif child.due is not None and child.due <= time.monotonic():
                self._begin(child)

    def _begin(self, child: Child) -> None:
        child.due = None
        child.process = processes.start(child.program)
        child.begun = time.monotonic()
        child.pidfd = os.pidfd_open(child.process.pid)
        self._poll.register(child.pidfd, select.POLLIN)
        self._write_pids()

    def _bury(self, child: Child) -> None:
        status = self._forget(child)
        if time.monotonic() - child.begun > SETTLED_SECONDS:
            child.deaths = 0
        child.deaths += 1
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        if child.most_deaths is not None and child.deaths >= child.most_deaths:
            self._say(f"{child.program.name} {how}; left alone after {child.deaths} starts, see {child.program.log}")
            return
        pause = min(FIRST_PAUSE_SECONDS * 2 ** (child.deaths - 1), LONGEST_PAUSE_SECONDS)
        child.due = time.monotonic() + pause
        self._say(f"{child.program.name} {how}; starting it again in {pause:.1f} s")

    def _forget(self, child: Child) -> int:
        """Reap an ended process, kill the rest of its group, and return its exit status."""
        if child.process is None:
            return 0
        processes.finish_stopping(child.process, deadline=0.0)
        status = child.process.returncode
        self._poll.unregister(child.pidfd)
        os.close(child.pidfd)
        child.process = None
        self._write_pids()
        return status

    # Stopping.

    def stop(self) -> None:
        """Stop everything, the highest tier first; kill programs that do not end in time."""
        for tier in sorted({child.tier for child in self._children.values()}, reverse=True):
            members = [child for child in self._children.values() if child.tier == tier and child.process is not None]
            deadline = time.monotonic() + max((child.program.stop_seconds for child in members), default=0.0)
            for child in members:
                if child.process is not None:
                    processes.ask_to_stop(child.program, child.process)
            for child in members:
                if child.process is not None:
                    processes.finish_stopping(child.process, deadline=deadline)
                    self._forget(child)
        self._children.clear()
        self._pids.unlink(missing_ok=True)

    def _write_pids(self) -> None:
        fresh = self._pids.with_suffix(".new")
        fresh.write_text(json.dumps(self.pids(), indent=2) + "\n")
        fresh.replace(self._pids)
