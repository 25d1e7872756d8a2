"""`python agent/jobs/keeper.py DIRECTORY`: start the program of one run, keep its output, and write how it ended.

One keeper for each run, in a session of its own. It outlives the agent, so neither an upgrade nor a crash of the agent
ends a run. The two talk through files of the run's directory, which the program cannot enter; a lock on one of them,
held for the keeper's life, says whether a keeper lives. All that the program starts is the keeper's descendant, also
what leaves its session or its parents: the keeper is their subreaper, and ends them after the program. Standard library
only, so that an upgrade of the agent does not matter to it and it starts in milliseconds.

1. Take the lock. 2. Fork the program, which waits. 3. Name its process. 4. Wait until the agent has put it under its
claim. 5. Let it fill its directory (`source`), and execute. 6. Keep its output until it ends, is stopped, or its time
is over. 7. End what it has left behind. 8. Write the result.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from agent.host import processes
from agent.host.processes import Process
from agent.jobs import descendants, program, resource_group
from agent.jobs.disk_use import DiskWatch
from agent.jobs.files import ADMITTED, LOCK, ORDER, PROGRAM, RESULT, STOP, TERMINALS, read, write
from agent.jobs.kept_output import KeptOutput

PR_SET_CHILD_SUBREAPER = 36
POLL_SECONDS, TICK_SECONDS = 0.02, 0.1
# A claim that was suspended in this moment may stay so for long.
PATIENT_AFTER_SECONDS = 5.0
# SIGKILL ends everything within a moment, but what waits in the kernel for a disk or a driver.
KILL_SECONDS = 10.0
# The agent looks at the lock by taking it for a moment.
LOCK_SECONDS = 2.0
RESULT_SECONDS = 60.0
CHUNK_BYTES, CHUNKS = 64 << 10, 16
# Of the keeper's own, in the run's group.
TASKS = 8


class Keeper:
    """The program of one run."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._order = order
        self._output = KeptOutput(order["output_bytes"])
        self._disk = self._watch_disk()
        self._woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._signalled = False
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._take_signal)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        self._pid, self._pipe, self._go, self._refusal = self._fork()
        for end in (self._pipe, self._refusal):
            os.set_blocking(end, False)
        self._open = True
        self._terminals: set[str] = set()
        self._status: int | None = None
        self._ended_at: float | None = None
        self._reason: str | None = None

    def keep(self) -> None:
        """Keep the program to its end, and write the result."""
        write(PROGRAM, processes.find(self._pid) or (self._pid, 0))
        admitted = self._await_admission()
        if admitted is not None:
            self._execute(admitted)
            self._watch()
        self._end_descendants()
        self._read()
        if admitted is None and self._reason is None:
            self._reason = "its program could not be started: its output says why"
        self._reason = self._reason or self._read_refusal()
        self._output.close()
        code = None if self._status is None else os.waitstatus_to_exitcode(self._status)
        self._write_result(
            {
                "exit_code": 128 - code if code is not None and code < 0 else code,
                "reason": self._reason or self._find_bound(code),
                "started_at": admitted["at"] if admitted is not None else None,
                "ended_at": self._ended_at or time.time(),
                "dropped": self._output.dropped,
            }
        )

    def _fork(self) -> program.Started:
        return program.start(self._order)

    def _execute(self, admitted: dict[str, Any]) -> None:
        with os.fdopen(self._go, "wb") as go, contextlib.suppress(BrokenPipeError):
            go.write(json.dumps(admitted["environment"]).encode())

    def _watch_disk(self) -> DiskWatch:
        order = self._order
        return DiskWatch((order["home"], order["tmp"]), uid=order["uid"], most=order["disk_bytes"])

    def _find_bound(self, code: int | None) -> str | None:
        """Return the bound of the machine at which the program failed; None if it did not fail at one."""
        if code and resource_group.count_oom_kills(resource_group.find_own().get("memory")):
            return f"host memory: the kernel ended a process at {self._order['memory_bytes'] >> 20:,} MiB"
        if code == -signal.SIGXFSZ:
            return f"disk: a file of more than {self._order['disk_bytes'] >> 20:,} MiB"
        return None

    def _await_admission(self) -> dict[str, Any] | None:
        """Return what the agent sends the program; None if it is not to execute any more."""
        begun_at = time.monotonic()
        while self._status is None:
            found = read(ADMITTED)
            if found is not None:
                return dict(found)
            if self._is_stopped():
                self._reason = "stopped"
                return None
            if not Path(ORDER).exists():
                self._leave()
            time.sleep(POLL_SECONDS if time.monotonic() - begun_at < PATIENT_AFTER_SECONDS else TICK_SECONDS)
            self._reap()
        return None

    def _watch(self) -> None:
        """Return after the program's end, when nothing of it is left or has had its time."""
        seconds = self._order["seconds"]
        over = time.monotonic() + seconds if seconds else float("inf")
        self._disk.start()
        kill_at = linger_until = float("inf")
        while True:
            watched = [self._woken, *([self._pipe] if self._open else [])]
            ready, _, _ = select.select(watched, [], [], TICK_SECONDS)
            if self._woken in ready:
                os.read(self._woken, 4096)
            self._read()
            self._reap()
            self._output.tell()
            if not Path(ORDER).exists():
                self._leave()
            now = time.monotonic()
            if self._status is None:
                self._open_terminals()
                reason = self._disk.reason or (f"time limit of {seconds} s" if now >= over else None)
                if kill_at == float("inf") and (reason or self._is_stopped()):
                    self._reason = reason or "stopped"
                    self._signal_all(signal.SIGTERM)
                    kill_at = now + self._order["stop_seconds"]
                elif now >= kill_at:
                    self._end_descendants()
            elif linger_until == float("inf"):
                linger_until = now + self._order["linger_seconds"]
                self._signal_all(signal.SIGTERM)
            elif now >= linger_until or not (self._open or descendants.find()):
                return

    def _open_terminals(self) -> None:
        """Start a process for each terminal that the agent waits for."""
        try:
            found = {name for name in os.listdir(TERMINALS) if not name.startswith(".")}  # noqa: PTH208 - each tick
        except OSError:
            return
        for name in found - self._terminals:
            command = [sys.executable, "-S", "-P", "-m", "agent.jobs.terminal_process", f"{TERMINALS}/{name}"]
            # Reaped with the others; it inherits no pipe of the program's.
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
        self._terminals = found

    def _leave(self) -> NoReturn:
        """End with everything of the program: somebody removed the directory, so nobody knows of the run any more."""
        self._end_descendants()
        sys.exit(0)

    def _is_stopped(self) -> bool:
        return self._signalled or os.path.lexists(STOP)

    def _take_signal(self, *_: object) -> None:
        self._signalled = True

    def _read(self) -> None:
        """Read what the program has written, up to a bound: its time and orders are looked at in between."""
        for _ in range(CHUNKS if self._open else 0):
            try:
                data = os.read(self._pipe, CHUNK_BYTES)
            except BlockingIOError:
                return
            if not data:
                self._open = False
                return
            self._output.put(data)

    def _read_refusal(self) -> str | None:
        """Return why the ended program did not come to execute; None if it did, or said nothing."""
        with os.fdopen(self._refusal, "rb") as told:
            return (told.read(program.MOST_WORDS) or b"").decode(errors="replace") or None

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._pid:
                self._status, self._ended_at = status, time.time()

    def _signal_all(self, number: signal.Signals) -> None:
        for process in descendants.find():
            processes.send(process, number)

    def _end_descendants(self) -> None:
        """End the program and all that it started: first stop them, so that none can start another, then kill."""
        stopped: set[Process] = set()
        until = time.monotonic() + KILL_SECONDS
        while (found := descendants.find()) and time.monotonic() < until:
            fresh = found - stopped
            for process in fresh or found:
                processes.send(process, signal.SIGSTOP if fresh else signal.SIGKILL)
            stopped |= fresh
            if not fresh:
                time.sleep(POLL_SECONDS)
            self._reap()
        self._reap()

    def _write_result(self, result: dict[str, Any]) -> None:
        """Write the result; on a full disk, try for a while."""
        until = time.monotonic() + RESULT_SECONDS
        while True:
            try:
                return write(RESULT, result)
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(1)


def take_lock() -> bool:
    """Lock the run for this process's life; return False if another keeper has it."""
    descriptor = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(POLL_SECONDS)


def main(directory: str) -> int:
    """Keep the run of this directory; return 1 if it has a keeper."""
    os.chdir(directory)
    os.umask(0o077)
    if not take_lock():
        return 1
    if read(RESULT) is not None or read(PROGRAM) is not None:
        return 0
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    order = read(ORDER)
    if order.get("container") is not None:
        from agent.jobs.container import ContainerKeeper  # noqa: PLC0415 - it is a keeper itself

        ContainerKeeper(order).keep()
        return 0
    if not resource_group.is_bounded(order["memory_bytes"]):
        resource_group.enter(
            order["group"],
            memory_bytes=order["memory_bytes"],
            most_processes=order["processes"] + TASKS,
            cpu_weight=order["cpu_weight"],
        )
    Keeper(order).keep()
    resource_group.leave(order["group"])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
