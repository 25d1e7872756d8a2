"""PostgreSQL and Valkey for one machine with nothing installed: for the demo, the tests and the benchmarks.

    with embedded.services(Path(".demo"), durable=True) as running:
        os.environ |= running.environment()

``DATABASE_URL`` and ``REDIS_URL`` win: what is set is used as it is, and only the other is started. Both servers listen
on Unix sockets in a directory of mode 0700, so no password is needed and no other user gets in.

The forms of the two addresses, each tried with the pinned clients (``tests/embedded/test_addresses.py``):

    DATABASE_URL   postgresql://gpucloud@/gpucloud?host=/dir            libpq's own form: psycopg takes it as it is
    REDIS_URL      unix:///dir/valkey.sock                              redis-py, Django's cache
      database 3   unix:///dir/valkey.sock?db=3                         the same; ``/3`` would be a part of the path
    for Celery     redis+socket:///dir/valkey.sock?virtual_host=3       broker (kombu) and result backend

kombu knows no ``unix://`` (``KeyError: No such transport``), redis-py no ``redis+socket://``: one must be made from the
other. Over TCP both take ``redis://:password@host:6379/3``.
"""

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from deploy.embedded import postgres, processes, valkey
from deploy.embedded.places import private_directory
from deploy.embedded.processes import Program, StartFailed

__all__ = ["Services", "StartFailed", "services"]


@dataclass(frozen=True)
class Services:
    """The addresses of the two services, and the processes started for them, by name."""

    database_url: str
    redis_url: str
    pids: Mapping[str, int] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """Return the variables that the settings read."""
        return {"DATABASE_URL": self.database_url, "REDIS_URL": self.redis_url}


@contextlib.contextmanager
def services(state: Path, *, durable: bool, template: Path | None = None) -> Iterator[Services]:
    """Start the services that the environment does not name; stop them at the end in reverse order.

    ``durable=False`` trades the safety of the data for speed and is for tests. A new state begins as a copy of the data
    directory ``template``. Must be entered from a thread that lives as long as the services should (see ``tether.py``).
    """
    state = private_directory(state.resolve())
    wanted: list[Program] = []
    if not (database_url := os.environ.get("DATABASE_URL", "")):
        database_url = postgres.url(state)
        wanted.append(postgres.server(state, durable=durable, template=template))
    if not (redis_url := os.environ.get("REDIS_URL", "")):
        redis_url = valkey.url(state)
        wanted.append(valkey.server(state))
    with contextlib.ExitStack() as stack:
        started: list[tuple[Program, subprocess.Popen[bytes]]] = []
        for program in wanted:
            process = processes.start(program)
            stack.callback(processes.stop, program, process)
            started.append((program, process))
        for program, process in started:
            processes.wait_ready(program, process)
        yield Services(database_url, redis_url, {program.name: process.pid for program, process in started})
