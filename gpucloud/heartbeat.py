"""Heartbeat of a process that serves no port: the age of a file says when its loop last moved.

`deploy/docker/alive.sh` compares it, for the probes of the chart and the health checks of Compose.
"""

import os
from pathlib import Path

from django.conf import settings

# A forked child, as a worker's, says nothing about the loop of its parent.
_OWNER = os.getpid()


def beat() -> None:
    """Touch HEARTBEAT_PATH, if it is set. Loops call this when they move, or wait for a server that is away."""
    if settings.HEARTBEAT_PATH and os.getpid() == _OWNER:
        Path(settings.HEARTBEAT_PATH).touch()
