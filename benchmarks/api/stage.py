"""Services of the API benchmark: durable PostgreSQL and Valkey from their wheels, and one server with two workers.

The server is started as by `make demo`, with a second worker. Neither scheduler nor agents run: a created claim stays
pending, and only the API is measured.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from deploy import embedded
from deploy.demo.programs import Commands
from deploy.demo.state import State
from deploy.embedded import processes
from tests.ports import free_port

WORKERS = 2


@dataclass(frozen=True)
class Stage:
    """A running server, and the data for requests."""

    port: int
    # Processes whose CPU time is reported, by role.
    pids: dict[str, int]
    tokens: list[str]
    tenants: list[str]
    claims: list[str]


@contextlib.contextmanager
def stage(directory: Path, *, clients: int, tenants: int, history: int) -> Iterator[Stage]:
    """Start everything, fill the database, and stop at the end."""
    with _services(directory) as (commands, database):
        tokens, slugs, claims = _fill(clients, tenants, history)
        server = commands.server()
        # A SIGKILL of the benchmark would reach the server's first process only and leave its workers.
        several = (*server.command, "--workers", str(WORKERS))
        server = replace(server, command=several, orphan_signal=signal.SIGTERM)
        process = processes.start(server)
        try:
            processes.wait_ready(server, process)
            yield Stage(commands.port, {"server": process.pid, "database": database}, tokens, slugs, claims)
        finally:
            processes.stop(server, process)


@contextlib.contextmanager
def filled(directory: Path, *, clients: int, tenants: int, history: int) -> Iterator[Stage]:
    """Start the services without a server, and fill the database."""
    with _services(directory) as (commands, database):
        yield Stage(commands.port, {"database": database}, *_fill(clients, tenants, history))


@contextlib.contextmanager
def _services(directory: Path) -> Iterator[tuple[Commands, int]]:
    """Start PostgreSQL and Valkey, and set the environment of the control plane; yield PostgreSQL's process, too."""
    state = State.at(directory / "state")
    for name in ("DATABASE_URL", "REDIS_URL"):
        os.environ.pop(name, None)
    with embedded.services(state.root, durable=True) as running:
        commands = Commands(state, port=free_port(), database_url=running.database_url, redis_url=running.redis_url)
        os.environ.update(commands.control_plane)
        yield commands, running.pids["postgres"]


def _fill(clients: int, tenants: int, history: int) -> tuple[list[str], list[str], list[str]]:
    """Return a token for each client, the tenants' slugs, and uids of active claims."""
    import django  # noqa: PLC0415 - the settings read the environment that was just made

    django.setup()
    from benchmarks.api.filling import fill  # noqa: PLC0415 - models, once apps are loaded

    return fill(clients=clients, tenants=tenants, history=history)
