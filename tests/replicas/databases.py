"""Two PostgreSQL servers, one a streaming standby of the other, and the failover between them.

The servers are the wheel's, with its own ``pg_basebackup``. A server that starts anew after its death finds out its
role as an operator's tool (Patroni, CloudNativePG) would: if it was the primary and its standby runs, the standby is
promoted and this one is made again as a standby of it. ``python -m tests.replicas.databases ROOT NUMBER -- COMMAND…``
does this and becomes the server.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg

from deploy.embedded import postgres
from deploy.embedded.places import private_directory, socket_directory
from deploy.embedded.processes import Program
from tests.processes import alive, eventually

NUMBERS = (1, 2)
# The name of whichever of the two is the standby.
STANDBY = "standby"
# A promotion takes a fraction of a second on an idle machine.
PROMOTED_SECONDS = 60
ROOT = Path(__file__).resolve().parent.parent.parent


def home(root: Path, number: int) -> Path:
    """Return the directory of one server."""
    return private_directory(root / f"db{number}")


def _host(root: Path, number: int) -> str:
    return str(socket_directory(home(root, number)))


def url(root: Path) -> str:
    """Return the address of both for DATABASE_URL: clients connect to the one that accepts writes."""
    hosts = ",".join(_host(root, number) for number in NUMBERS)
    return f"postgresql://{postgres.USER}@/{postgres.DATABASE}?host={quote(hosts)}&target_session_attrs=read-write"


def server(root: Path, number: int, *, template: Path | None) -> Program:
    """Return one server's program."""
    state = home(root, number)
    made = postgres.server(state, durable=False, template=template)
    more = {
        # A commit that is acknowledged is on the standby, too; that it survives a crash of the machine is not tested.
        "synchronous_commit": os.environ.get("SYNCHRONOUS_COMMIT", "on"),
        "wal_keep_size": "256MB",
        "wal_retrieve_retry_interval": "200ms",
        "max_connections": "400",
    }
    options = [word for name, value in more.items() for word in ("-c", f"{name}={value}")]
    launcher = (sys.executable, "-m", "tests.replicas.databases", str(root), str(number), "--")
    program = replace(
        made, name=f"postgres-{number}", command=(*launcher, *made.command, *options), directory=ROOT, environment=None
    )
    if number == 1:
        return program
    return replace(program, ready=lambda: is_standby(root, number), prepare=lambda: None)


def connect(root: Path, number: int, *, dbname: str = "postgres") -> psycopg.Connection[Any]:
    """Connect to one server. Raises psycopg.OperationalError."""
    return psycopg.connect(
        host=_host(root, number), user=postgres.USER, dbname=dbname, autocommit=True, connect_timeout=5
    )


def is_standby(root: Path, number: int) -> bool:
    """Return True if this server answers and replays another's log."""
    try:
        with connect(root, number) as connection:
            found = connection.execute("SELECT pg_is_in_recovery()").fetchone()
            return found is not None and bool(found[0])
    except psycopg.OperationalError:
        return False


def primary(root: Path) -> int:
    """Return the number of the primary."""
    return int((root / "primary").read_text())


def _record_primary(root: Path, number: int) -> None:
    fresh = root / "primary.new"
    fresh.write_text(str(number))
    fresh.replace(root / "primary")


def begin(root: Path) -> None:
    """Record the first server as the primary of a new pair."""
    if not (root / "primary").exists():
        _record_primary(root, 1)


def require_standby(root: Path, *, standby: str = STANDBY) -> None:
    """Have each commit wait for the standby, whichever of the two it is; for none if `standby` is empty."""
    for number in NUMBERS:
        with connect(root, number) as connection:
            connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{standby}'")
            connection.execute("SELECT pg_reload_conf()")


def is_streaming(root: Path, *, state: str = "streaming") -> bool:
    """Return True if the standby receives the primary's log."""
    try:
        with connect(root, primary(root)) as connection:
            row = connection.execute(
                "SELECT state, sync_state FROM pg_stat_replication WHERE application_name = %s", [STANDBY]
            )
            return any(state in found for found in row.fetchall())
    except psycopg.OperationalError:
        return False


def partition(root: Path) -> None:
    """Cut the standby off from its primary."""
    number = 3 - primary(root)
    with connect(root, number) as connection:
        connection.execute("ALTER SYSTEM SET primary_conninfo = 'host=/nonexistent'")
        connection.execute("SELECT pg_reload_conf()")


def kill_all(pid: int) -> None:
    """Kill a server with all of its processes, as the end of its machine does."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for each in (pid, *map(int, children)):
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    eventually(lambda: not any(map(alive, map(int, children))), seconds=10)


def main() -> None:
    root, number = Path(sys.argv[1]), int(sys.argv[2])
    command = sys.argv[sys.argv.index("--") + 1 :]
    data = home(root, number) / postgres.DATA
    if primary(root) == number and is_standby(root, 3 - number):
        time.sleep(float(os.environ.get("FAILOVER_SECONDS", "0.5")))
        _promote(root, 3 - number)
    if primary(root) != number:
        if not (data / "standby.signal").exists():
            _copy_primary(root, data)
        _follow(root, number, data)
    os.execvp(command[0], command)  # noqa: S606 - becomes the server


def _promote(root: Path, number: int) -> None:
    with connect(root, number) as connection:
        connection.execute("SELECT pg_promote(true, %s)", [PROMOTED_SECONDS])
    _record_primary(root, number)


def _copy_primary(root: Path, data: Path) -> None:
    """Make the data directory anew from the primary's, as a standby."""
    shutil.rmtree(data, ignore_errors=True)
    source = f"host={_host(root, primary(root))} user={postgres.USER}"
    copy = [
        *postgres.command("pg_basebackup"),
        "-d",
        source,
        "-D",
        str(data),
        "-X",
        "stream",
        "-c",
        "fast",
        "--no-sync",
    ]
    while subprocess.run(copy, check=False).returncode != 0:
        # The primary is starting or was just killed.
        shutil.rmtree(data, ignore_errors=True)
        time.sleep(0.2)
    (data / "standby.signal").touch()


def _follow(root: Path, number: int, data: Path) -> None:
    """Have a standby receive the other's log; of a setting's lines the last one counts."""
    other = f"host={_host(root, 3 - number)} user={postgres.USER} application_name={STANDBY}"
    with (data / "postgresql.auto.conf").open("a") as file:
        file.write(f"primary_conninfo = '{other}'\n")


if __name__ == "__main__":
    main()
