"""The page docs/kubernetes-first-hour.md as a script: its commands by step, run in a shell, and their output.

In that shell, `gpucloud` speaks to the test's server, and `kubectl exec … manage.py` runs here on the test's database:
no kubelet runs a pod. What the page says that a command prints must be printed, but for spaces; `…` is anything.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from django.db import connection

from tests.helm import HELM
from tests.platform import ROOT

PAGE = ROOT / "docs" / "kubernetes-first-hour.md"
PROGRAM = re.compile(r"    (kubectl|helm|gpucloud|echo) \S")
BACK = "**Back.**"
INSIDE = "-n gpucloud exec deploy/gpucloud-web -- "
KUBECTL = f"""#!/bin/sh
case "$*" in "{INSIDE}"*) shift 5; shift; cd {ROOT}; exec {sys.executable} "$@";; esac
exec "$KUBEBUILDER_ASSETS/kubectl" "$@"
"""
PATIENCE_SECONDS = 40.0


class Command:
    """A command of the page, and the lines that it prints according to the page."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.output: list[str] = []
        self.ran = False

    def check(self, printed: str) -> None:
        """Raise AssertionError if a line of the page was not printed."""
        found = [" ".join(line.split()) for line in printed.splitlines()]
        for line in self.output:
            pattern = ".*".join(re.escape(part) for part in " ".join(line.split()).split("…"))
            assert any(re.fullmatch(pattern, one) for one in found), f"{self.text}\nprints no\n  {line}\nbut\n{printed}"


class Walk:
    """The page's steps, to be run in order."""

    def __init__(self, directory: Path, **variables: str) -> None:
        """Read the page; commands run in `directory` with these variables."""
        self.directory = directory
        self._steps = _steps(PAGE.read_text(encoding="utf-8"))
        programs = directory / "programs"
        programs.mkdir(parents=True)
        for name, text in {
            "kubectl": KUBECTL,
            "helm": f'#!/bin/sh\nexec {HELM} "$@"\n',
            "gpucloud": f'#!/bin/sh\nexec {sys.executable} -m gpucloud_cli "$@"\n',
        }.items():
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        facts = connection.get_connection_params()
        self._environment = {
            **os.environ,
            "PATH": f"{programs}:/usr/bin:/bin",
            "HOME": str(directory),
            "PYTHONPATH": str(ROOT / "cli"),
            "DATABASE_URL": f"postgresql://{facts['user']}@/{facts['dbname']}?host={facts['host']}",
            **variables,
        }

    def set(self, **variables: str) -> None:
        """Set variables of the shell."""
        self._environment |= variables

    def shell(self, text: str) -> str:
        """Run a command that is not of the page."""
        return self._one(Command(text))

    def do(self, step: int, *, starting: str = "") -> str:
        """Run the step's commands (that start so); return what they print."""
        return self._run(self._steps[step][0], starting)

    def back(self, step: int) -> str:
        """Run the step's way back; return what its commands print."""
        return self._run(self._steps[step][1], "")

    def left_out(self) -> list[str]:
        """Return the commands that were never run."""
        return [one.text for both in self._steps.values() for part in both for one in part if not one.ran]

    def _run(self, commands: list[Command], starting: str) -> str:
        printed = [self._one(command) for command in commands if command.text.startswith(starting)]
        assert printed or not starting, starting
        return "".join(printed)

    def _one(self, command: Command) -> str:
        """Run the command until it succeeds, as a person does who reads why it did not."""
        command.ran = True
        # A pod of the cluster has an account's token in a file; this process has none.
        text = command.text.replace("--in-cluster true", '--kubeconfig "$(cat kubeconfig)"')
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", text],
                cwd=self.directory, env=self._environment, capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode == 0:
                command.check(done.stdout)
                return done.stdout
            assert time.monotonic() < until, f"{command.text}\n{done.stdout}{done.stderr}"
            time.sleep(1)


def _steps(page: str) -> dict[int, tuple[list[Command], list[Command]]]:
    """Return each step's commands and those of its way back, by its number."""
    found = {}
    for number, text in re.findall(r"^## (\d+)\. .*?\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE):
        do, _, back = text.partition(BACK)
        found[int(number)] = _commands(do), _commands(back)
    return found


def _commands(text: str) -> list[Command]:
    found: list[Command] = []
    for line in text.splitlines():
        if PROGRAM.match(line):
            found.append(Command(line.strip()))
        elif line.startswith("    "):
            found[-1].output.append(line.strip())
    return found
