"""`gpucloud` as a subprocess, against a whole platform."""

import json
import os
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

    def data(self, *arguments: str) -> Any:
        """Return the JSON of a command that must succeed."""
        ended = self.run(*arguments, "--json")
        assert ended.code == 0, ended
        return ended.data


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
