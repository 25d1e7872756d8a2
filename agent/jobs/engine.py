"""The command line of a container engine, in the part that Podman and Docker share. Standard library only."""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
from collections.abc import Sequence
from typing import IO, Any

PR_SET_PDEATHSIG = 1
SECONDS = 30.0
# Nothing of a tenant's is ever in the environment of what runs as root.
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
# The label of a run's container: the directory of all runs, because several agents may share an engine. An image may
# have labels, too: only with its name is a container a run's.
LABEL, PREFIX = "gpucloud.io/runs", "gpucloud-run-"


class EngineError(Exception):
    """The engine has failed; the message is its own last line."""


def name_of(uid: str) -> str:
    """Return the name of a run's container."""
    return f"{PREFIX}{uid}"


def call(engine: Sequence[str], *arguments: str, seconds: float = SECONDS) -> str:
    """Return what the engine prints. Raises EngineError."""
    try:
        done = subprocess.run(
            [*engine, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
            env=ENVIRONMENT,
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"{arguments[0]}: no answer in {seconds:.0f} s") from error
    except OSError as error:
        raise EngineError(str(error)) from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"{arguments[0]}: exit code {done.returncode}"]
        raise EngineError(lines[-1][:500])
    return done.stdout


def inspect(engine: Sequence[str], kind: str, name: str) -> dict[str, Any] | None:
    """Return what the engine knows of an image or a container; None if it has none of this name."""
    try:
        found = json.loads(call(engine, kind, "inspect", name))
    except (EngineError, ValueError):
        return None
    return found[0] if isinstance(found, list) and found and isinstance(found[0], dict) else None


def remove(engine: Sequence[str], name: str) -> None:
    """End a container and remove it; none is no error. Raises EngineError."""
    with contextlib.suppress(EngineError):
        # Else it has ended, or there is none.
        call(engine, "kill", "--signal", "KILL", name)
    if inspect(engine, "container", name) is not None:
        call(engine, "rm", "--force", "--volumes", name)


def start(engine: Sequence[str], *arguments: str, output: IO[bytes] | int) -> subprocess.Popen[bytes]:
    """Start a command of the engine, which ends with this process; its output goes to this file."""
    parent = os.getpid()

    def end_with_parent() -> None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return subprocess.Popen(
        [*engine, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=ENVIRONMENT,
        start_new_session=True,
        preexec_fn=end_with_parent,  # noqa: PLW1509 - no other thread runs yet
    )
