"""Heartbeats of the real processes: a stalled loop is seen, and one that waits for a server that is away beats on."""

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
from django.db import connection
from psycopg import sql

from deploy.embedded import valkey
from tests.cast import Cast
from tests.heartbeats import moves, stands_still
from tests.processes import eventually
from tests.scheduling.programs import program, sessions

pytestmark = pytest.mark.django_db(transaction=True)
QUIET = ("--loglevel", "error")
# As `make demo` starts it. Without these, a worker that loses Redis while it starts ends, and is started again.
WITHOUT = ("--without-gossip", "--without-mingle", "--without-heartbeat")
COMMANDS: dict[str, tuple[str, ...]] = {
    "scheduler": ("manage.py", "scheduler"),
    "clusters": ("manage.py", "clusters"),
    "sharepods": ("manage.py", "sharepods"),
    "worker": ("-m", "celery", "-A", "gpucloud", "worker", *QUIET, "--concurrency", "1", *WITHOUT),
    "beat": ("-m", "celery", "-A", "gpucloud.beat", "beat", *QUIET, "--pidfile", ""),
}
# Which table each loop reads again and again.
READS = {"scheduler": "quotas_pool", "clusters": "clusters_cluster", "sharepods": "clusters_cluster"}
Start = Callable[..., tuple[subprocess.Popen[bytes], Path]]


@pytest.fixture
def start(real_cast: Cast, tmp_path: Path) -> Iterator[Start]:
    """Start a process; return it and its file once it beats."""
    with ExitStack() as stack:

        def begin(name: str, **environment: str) -> tuple[subprocess.Popen[bytes], Path]:
            file = tmp_path / "heartbeat"
            command = COMMANDS[name]
            if name == "beat":
                command = (*command, "--schedule", str(tmp_path / "schedule"))
            process = stack.enter_context(program(*command, HEARTBEAT_PATH=str(file), **environment))
            assert moves(file), name
            return process, file

        yield begin


@contextmanager
def locked(table: str) -> Iterator[None]:
    """Let every statement on the table wait until the end of the block."""
    facts = connection.get_connection_params()
    with (
        psycopg.connect(dbname=facts["dbname"], user=facts["user"], host=facts["host"]) as other,
        other.transaction(),
    ):
        other.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(sql.Identifier(table)))
        yield


def is_waited_for() -> bool:
    """Return True if a session waits for the lock of a table."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'relation' AND NOT granted"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))"
        )
        return bool(cursor.fetchone()[0])


@contextmanager
def database_away() -> Iterator[None]:
    """End all sessions of other processes on the test's database, and let none begin until the end of the block."""
    name = sql.Identifier(connection.settings_dict["NAME"])
    facts = connection.get_connection_params()
    with psycopg.connect(dbname="postgres", user=facts["user"], host=facts["host"], autocommit=True) as other:
        allow = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
        other.execute(allow.format(name, sql.SQL("false")))
        try:
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> %s",
                [facts["dbname"], connection.connection.info.backend_pid],
            )
            yield
        finally:
            other.execute(allow.format(name, sql.SQL("true")))


@pytest.mark.parametrize("name", READS)
def test_a_loop_that_hangs_in_a_statement_is_seen_and_one_that_waits_for_the_database_beats(
    start: Start, name: str
) -> None:
    """Its end would help nobody, and a database that comes back would find processes that still start."""
    process, file = start(name)
    with locked(READS[name]):
        assert eventually(is_waited_for, seconds=60)
        assert stands_still(file)
    assert moves(file), "it was only late"

    with database_away():
        assert eventually(lambda: sessions() == 0, seconds=10)
        for _ in range(2):
            assert moves(file)
    assert process.poll() is None
    assert moves(file)


@pytest.mark.parametrize("name", ["worker", "beat"])
def test_a_loop_of_celery_that_stands_still_is_seen_and_one_that_waits_for_redis_beats(
    start: Start, name: str, tmp_path: Path
) -> None:
    server = valkey.server(tmp_path)
    (tmp_path / "logs").mkdir()

    @contextmanager
    def redis() -> Iterator[None]:
        server.prepare()
        with subprocess.Popen(server.command, cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
            try:
                assert eventually(server.ready, seconds=30)
                yield
            finally:
                process.kill()

    with redis():
        process, file = start(name, REDIS_URL=valkey.url(tmp_path))
        process.send_signal(signal.SIGSTOP)
        assert stands_still(file)
        process.send_signal(signal.SIGCONT)
        assert moves(file), "it was only late"
    # Celery pauses longer after each attempt.
    for _ in range(3):
        assert moves(file)
    with redis():
        assert moves(file)
    assert process.poll() is None


@pytest.mark.parametrize("name", ["worker", "beat"])
def test_a_start_without_redis_beats(start: Start, name: str) -> None:
    process, file = start(name, REDIS_URL="unix:///nonexistent/valkey.sock")
    assert moves(file)
    assert process.poll() is None
