"""Start and stop of the programs that one launcher owns.

Every child is a session of its own (a Ctrl-C at the terminal reaches the launcher only, which then stops its children
in order) and is tethered: it ends when the launcher does, even by SIGKILL. ``tether.py`` explains how, and why children
must be started from a thread that lives as long as they should.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

TETHER = Path(__file__).with_name("tether.py")
TAIL_LINES = 25
# Checked at each start only: the programs keep their files open.
LARGE_LOG_BYTES = 10 << 20


class StartFailed(Exception):
    """A program ended, or was not ready in time; the message has the end of its log."""


def _ready_at_once() -> bool:
    return True


def _nothing() -> None:
    return None


@dataclass(frozen=True, kw_only=True)
class Program:
    """A command that a launcher starts, waits for and stops.

    ``prepare`` runs before every start (stale sockets and lock files go there); ``ready`` is polled until it returns
    True. Times are seconds; a program that ends while starting is noticed at once, so ``ready_seconds`` is for a very
    busy machine.
    """

    name: str
    command: tuple[str, ...]
    log: Path
    environment: Mapping[str, str] | None = None
    directory: Path | None = None
    user: tuple[int, int] | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    orphan_signal: signal.Signals = signal.SIGKILL
    stop_seconds: float = 10.0
    ready_seconds: float = 120.0
    ready: Callable[[], bool] = field(default=_ready_at_once)
    prepare: Callable[[], None] = field(default=_nothing)


def start(program: Program) -> subprocess.Popen[bytes]:
    """Start the program without waiting for it; append its output to its log."""
    program.prepare()
    make_room(program.log)
    user = "-" if program.user is None else f"{program.user[0]}:{program.user[1]}"
    tethered = [sys.executable, "-I", "-S", str(TETHER), str(os.getpid()), str(int(program.orphan_signal)), user, "--"]
    with program.log.open("ab") as log:
        return subprocess.Popen(
            [*tethered, *program.command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=None if program.environment is None else dict(program.environment),
            cwd=program.directory,
            start_new_session=True,
        )


def make_room(log: Path) -> None:
    """Make the log's directory; rotate a large log, replacing an older one."""
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > LARGE_LOG_BYTES:
        log.replace(log.with_suffix(".old.log"))


def wait_ready(program: Program, process: subprocess.Popen[bytes]) -> None:
    """Wait until the program is ready.

    Raises StartFailed if it ended or took too long.
    """
    deadline = time.monotonic() + program.ready_seconds
    while not program.ready():
        status = process.poll()
        if status is not None:
            raise StartFailed(f"{program.name} ended with status {status}:\n{tail(program.log)}")
        if time.monotonic() > deadline:
            stop(program, process)
            raise StartFailed(f"{program.name} was not ready after {program.ready_seconds:.0f} s:\n{tail(program.log)}")
        time.sleep(0.02)


def stop(program: Program, process: subprocess.Popen[bytes]) -> None:
    """Stop the program and the rest of its process group."""
    ask_to_stop(program, process)
    finish_stopping(process, deadline=time.monotonic() + program.stop_seconds)


def ask_to_stop(program: Program, process: subprocess.Popen[bytes]) -> None:
    """Send the program its own stop signal: to the leader only, which can end its children."""
    if process.poll() is None:
        process.send_signal(program.stop_signal)


def finish_stopping(process: subprocess.Popen[bytes], *, deadline: float) -> None:
    """Wait until the deadline (monotonic), then kill the whole process group."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0.0, deadline - time.monotonic()))
    # The leader's pid stays taken until it is reaped or its group is empty, so this cannot hit a stranger's group
    # unless the whole group has ended and the number was used again within this call.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def tail(log: Path, lines: int = TAIL_LINES) -> str:
    """Return the last lines of a log, indented; a statement if there are none."""
    try:
        text = log.read_text(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        text = []
    return "\n".join(f"  | {line}" for line in text) or f"  | ({log} is empty)"
