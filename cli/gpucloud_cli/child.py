"""The child process of `gpucloud run`: in its own process group, with the terminal as a shell would give it.

Ctrl-C reaches the foreground group, which is the child's, so the child gets it once; signals sent to this process are
passed on to the child's group. When Ctrl-Z stops the child, this process stops too, so that the shell gets its prompt
back, and `fg` and `bg` continue both.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self

from gpucloud_cli import launch
from gpucloud_cli.failures import Failure

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
PASSED_ON = (*ENDING, signal.SIGUSR1, signal.SIGUSR2)
# No signal is needed to notice the child's end; this only bounds the cost of a lost one.
LOOK_SECONDS = 1.0


class NotHere(Failure):
    """This machine is not the claim's node."""

    exit = 3


def command_line(place: Mapping[str, Any], command: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment.

    Raises NotHere.
    """
    path = Path(place["agent_socket"])
    if not path.exists():
        raise NotHere(f"The claim is on node {place['node']}, and its agent's socket {path} is not on this machine.")
    given = {"GPUCLOUD_CLAIM_SECRET": place["secret"], "GPUCLOUD_AGENT_SOCKET": str(path)}
    return [sys.executable, "-I", launch.__file__, place["claim"], *command], dict(os.environ) | given


def become(place: Mapping[str, Any], command: Sequence[str]) -> NoReturn:
    """Replace this process by the command under the claim.

    Raises NotHere.
    """
    line, environment = command_line(place, command)
    os.execve(line[0], line, environment)  # noqa: S606 - becoming the command is the purpose


class Signals:
    """Signals to this process: passed on to the child's group, and stored in `caught` while there is none.

    Use as a context manager, in the main thread.
    """

    def __init__(self) -> None:
        self.caught: list[int] = []
        # True once a signal came that asks the child to end.
        self.ending = False
        self.group: int | None = None
        self.continued = False
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: dict[int, Any] = {}
        self._wakeup_before = -1

    def __enter__(self) -> Self:
        self._wakeup_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in (*PASSED_ON, signal.SIGCHLD, signal.SIGCONT):
            # Signals that were ignored at the start (nohup, a script's `&`) stay ignored, in the child too.
            if number in (signal.SIGCHLD, signal.SIGCONT) or signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self.take)
        return self

    def __exit__(self, _type: type[BaseException] | None, _value: object, _traceback: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._reader)
        os.close(self._writer)

    def wait(self, seconds: float) -> None:
        """Wait until a signal comes or the time has passed."""
        if select.select([self._reader], [], [], seconds)[0]:
            os.read(self._reader, 4096)

    def take(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal."""
        self.ending |= number in ENDING
        if number == signal.SIGCONT:
            self.continued = True
        elif number != signal.SIGCHLD and self.group is not None:
            self.send(number)
        elif number != signal.SIGCHLD:
            self.caught.append(number)

    def send(self, number: int) -> None:
        """Send a signal to every process of the child's group, if there is one."""
        if self.group is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.group, number)


class Child:
    """A started program; `wait` must be called."""

    def __init__(self, line: Sequence[str], environment: Mapping[str, str], signals: Signals) -> None:
        self._signals = signals
        self._terminal = _controlling_terminal()
        # In a pipeline the terminal stays with the shell's group, where a pager may read it, until the child asks.
        self._has_use = sys.stdin.isatty() and sys.stdout.isatty()
        already = len(signals.caught)
        self._process = subprocess.Popen(line, env=environment, process_group=0)
        signals.group = self._process.pid
        # Signals that came during the start had no group to go to.
        for number in signals.caught[already:]:
            signals.send(number)
        self._give_terminal()

    def wait(self) -> int:
        """Wait for the end and return the exit code; 128 + n if signal n ended it."""
        if self._terminal is not None:
            # Ctrl-Z while the terminal is with our group: stop the child's group first.
            signal.signal(signal.SIGTSTP, self._signals.take)
        try:
            while True:
                status = self._poll()
                if status is not None:
                    return status
                if self._signals.continued:
                    self._signals.continued = False
                    self._give_terminal()
                    self._signals.send(signal.SIGCONT)
                self._signals.wait(LOOK_SECONDS)
        finally:
            self._signals.group = None
            self._take_terminal()
            if self._terminal is not None:
                signal.signal(signal.SIGTSTP, signal.SIG_DFL)
                os.close(self._terminal)

    def _poll(self) -> int | None:
        pid, status = os.waitpid(self._process.pid, os.WNOHANG | os.WUNTRACED)
        if pid == 0:
            return None
        if os.WIFSTOPPED(status):
            self._handle_stop(os.WSTOPSIG(status))
            return None
        code = os.waitstatus_to_exitcode(status)
        self._process.returncode = code
        return code if code >= 0 else 128 - code

    def _handle_stop(self, number: int) -> None:
        """Give the child the terminal that it wants; else stop too, so that the shell gets its prompt back."""
        if self._terminal is None:
            return
        if number in (signal.SIGTTIN, signal.SIGTTOU) and _foreground(self._terminal) == os.getpgrp():
            self._has_use = True
            self._give_terminal()
            self._signals.send(signal.SIGCONT)
            return
        self._take_terminal()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        # This process stops here until it is continued; then the child is.
        os.killpg(os.getpgrp(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._signals.take)

    def _give_terminal(self) -> None:
        if self._has_use and self._terminal is not None and _foreground(self._terminal) == os.getpgrp():
            _set_foreground(self._terminal, self._process.pid)

    def _take_terminal(self) -> None:
        if self._terminal is not None and _foreground(self._terminal) == self._process.pid:
            _set_foreground(self._terminal, os.getpgrp())


def _controlling_terminal() -> int | None:
    """Return this session's terminal, wherever our own stdin comes from; None in a pipeline."""
    try:
        return os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return None


def _foreground(terminal: int) -> int | None:
    """Return the terminal's foreground group; None once the terminal is gone."""
    try:
        return os.tcgetpgrp(terminal)
    except OSError:
        return None


def _set_foreground(terminal: int, group: int) -> None:
    # A background process that does this is stopped unless it ignores SIGTTOU. The terminal or the group may be gone.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    with contextlib.suppress(OSError):
        os.tcsetpgrp(terminal, group)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
