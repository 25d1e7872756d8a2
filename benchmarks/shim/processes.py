"""Measured processes: each in its own group, its output in a file, ended with the stage."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
POLL_SECONDS = 0.005
# A driver needs a moment to take a context down after SIGTERM.
GRACE_SECONDS = 5.0


class ProcessFailed(Exception):
    """A process ended, or did not print an expected row in time; the message has the end of its error output."""


class Process:
    """One program. Its rows are the JSON lines that it prints."""

    def __init__(self, command: Sequence[str | Path], environment: Mapping[str, str], log: Path, cwd: Path) -> None:
        self.name = Path(command[0]).name if len(command) < 3 else str(command[2]).rpartition(".")[2]
        self._log, self._errors = log.with_suffix(".out"), log.with_suffix(".err")
        self._seen = 0
        self.began_ns = time.monotonic_ns()
        with self._log.open("wb") as out, self._errors.open("wb") as errors:
            self._popen = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=errors,
                env=dict(environment),
                cwd=cwd,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    def rows(self) -> list[Row]:
        """Return every JSON object printed so far, one a line; other lines are left out."""
        text = self._log.read_text(errors="replace")
        whole = text[: text.rfind("\n") + 1].splitlines()
        return [json.loads(line) for line in whole if line.startswith("{")]

    def say(self, command: str) -> None:
        """Write a line to its standard input. :meth:`wait` then looks at later rows only."""
        self._seen = len(self.rows())
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(f"{command}\n".encode())
            self._popen.stdin.flush()
        except OSError:
            raise self._failure(f"took no {command!r}") from None

    def end_input(self) -> None:
        assert self._popen.stdin is not None
        with contextlib.suppress(OSError):
            self._popen.stdin.close()

    def wait(self, event: str | None = None, seconds: float = 60.0) -> Row:
        """Return the next row with this ``event`` (any row without one).

        Raises :class:`ProcessFailed` after so many seconds.
        """
        until = time.monotonic() + seconds
        while True:
            alive = self.alive
            for row in self.rows()[self._seen :]:
                if event is None or row.get("event") == event:
                    return row
            if not alive:
                raise self._failure(f"ended with {self._popen.returncode} before {event or 'it said anything'}")
            if time.monotonic() > until:
                raise self._failure(f"did not say {event or 'anything'} within {seconds:.0f} s")
            time.sleep(POLL_SECONDS)

    def answers(self) -> list[Row]:
        """Return the rows since the last :meth:`say`."""
        return self.rows()[self._seen :]

    def finish(self, seconds: float) -> list[Row]:
        """Wait for its end and return all its rows.

        Raises :class:`ProcessFailed` if it fails or takes longer.
        """
        try:
            status = self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise self._failure(f"still ran after {seconds:.0f} s") from None
        if status:
            raise self._failure(f"ended with {status}")
        return self.rows()

    def stop(self, number: signal.Signals) -> None:
        """Send a signal to the process itself."""
        with contextlib.suppress(ProcessLookupError):
            self._popen.send_signal(number)

    def terminate(self) -> None:
        """Send SIGTERM, then end its whole group."""
        if self.alive:
            self.stop(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(GRACE_SECONDS)
        self.kill()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait()
        self.end_input()

    def _failure(self, what: str) -> ProcessFailed:
        said = self._errors.read_text(errors="replace").strip()[-600:]
        return ProcessFailed(f"{self.name} {what}" + (f": {said}" if said else ""))
