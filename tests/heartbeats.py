"""Heartbeats of processes that serve no port, and the check that reads them."""

import os
import subprocess
import time
from pathlib import Path

from tests.processes import eventually

CHECK = str(Path(__file__).resolve().parent.parent / "deploy" / "docker" / "alive.sh")
LONG_AGO_SECONDS = 3600


def is_alive(file: Path) -> bool:
    """Return what the probe of the chart and the health check of Compose say."""
    environment = {"PATH": "/usr/bin:/bin", "HEARTBEAT_PATH": str(file)}
    done = subprocess.run(["sh", CHECK], env=environment, capture_output=True, check=False)
    return done.returncode == 0


def age(file: Path, seconds: float) -> None:
    """Let the file be so old."""
    then = time.time() - seconds
    os.utime(file, (then, then))


def moves(file: Path, *, seconds: float = 60) -> bool:
    """Return True if the process beats again after this moment, within a time for busy machines."""
    if file.exists():
        age(file, LONG_AGO_SECONDS)
    return eventually(lambda: is_alive(file), seconds=seconds)


def stands_still(file: Path, *, seconds: float = 5) -> bool:
    """Return True if the process does not beat for so long, as the check sees it once the file is old."""
    # What was begun before the stall may end with a beat.
    time.sleep(1)
    age(file, LONG_AGO_SECONDS)
    return not eventually(lambda: is_alive(file), seconds=seconds)
