"""`gpucloud` against a whole platform.

A command that starts a program is a process, as is what `start` starts. Others run in the test's own process: starting
Python costs more than they do.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from gpucloud_cli.main import main
from tests.platform import ROOT, Platform

SECONDS = 60.0


@dataclass(frozen=True)
class Ended:
    """Result of a command."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """Return its JSON."""
        return json.loads(self.out)


class Shell:
    """A user's environment: an address, a token, a home of their own."""

    def __init__(self, home: Path, **environment: str) -> None:
        self.home = home
        inherited = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        self.environment = inherited | {"HOME": str(home), "PYTHONPATH": str(ROOT / "cli")} | environment

    def line(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "gpucloud_cli", *arguments]

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start a command, with pipes by default."""
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        environment = self.environment | options.pop("environment", {})
        return subprocess.Popen(self.line(*arguments), env=environment, text=True, cwd=self.home, **(pipes | options))

    def run(self, *arguments: str, stdin: str = "", **environment: str) -> Ended:
        """Run a command to its end."""
        if "--" not in arguments:
            return self._run_here(arguments, stdin, self.environment | environment)
        done = subprocess.run(
            self.line(*arguments),
            env=self.environment | environment,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
            cwd=self.home,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def _run_here(self, arguments: tuple[str, ...], stdin: str, environment: dict[str, str]) -> Ended:
        """Call the entry point, with this user's environment in place of the test's own."""
        out, err = stream(), stream(errors="backslashreplace")
        with (
            contextlib.chdir(self.home),
            mock.patch.dict(os.environ, environment, clear=True),
            mock.patch.multiple(sys, argv=["gpucloud", *arguments], stdin=stream(stdin), stdout=out, stderr=err),
        ):
            code = main()
        return Ended(int(code), written(out), written(err))

    def data(self, *arguments: str) -> Any:
        """Return the JSON of a command that must succeed."""
        ended = self.run(*arguments, "--json")
        assert ended.code == 0, ended
        return ended.data


def stream(content: str = "", *, errors: str = "strict") -> io.TextIOWrapper:
    """Return a stream as a process in a pipe has it."""
    return io.TextIOWrapper(io.BytesIO(content.encode()), encoding="utf-8", errors=errors)


def written(one: io.TextIOWrapper) -> str:
    one.seek(0)
    return one.read()


def finish(process: subprocess.Popen[str]) -> Ended:
    """Wait for a started command; return its result."""
    out, err = process.communicate(timeout=SECONDS)
    return Ended(process.returncode, out, err)


def new_name(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


def live_claims(platform: Platform, tenant: str) -> list[dict[str, Any]]:
    """Return the tenant's claims that are not released."""
    rows = platform.granted("GET", f"claims/?tenant={tenant}")["results"]
    return [row for row in rows if row["state"] != "released"]
