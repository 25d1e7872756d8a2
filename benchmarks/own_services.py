"""A benchmark's own PostgreSQL and Valkey, which the settings of its process name."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from deploy import embedded
from deploy.demo.programs import Commands
from deploy.demo.state import State


@contextlib.contextmanager
def own_services(*, durable: bool = True, **variables: str) -> Iterator[embedded.Services]:
    """Start them in a temporary directory, and set the environment that Django's settings read, throttling off."""
    for name in ("DATABASE_URL", "REDIS_URL"):
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory(prefix="gpucloud-bench-") as directory:
        state = State.at(Path(directory) / "state")
        with embedded.services(state.root, durable=durable) as running:
            commands = Commands(state, port=1, database_url=running.database_url, redis_url=running.redis_url)
            os.environ.update(commands.control_plane | {"THROTTLE_PER_SECOND": "0"} | variables)
            yield running
