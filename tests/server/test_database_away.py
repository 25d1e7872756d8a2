"""Every door of a server whose database is away says 503 with Retry-After, soon; none answers 500 or hangs."""

import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import InternalError, OperationalError
from psycopg import OperationalError as DriverError
from psycopg.errors import InvalidSqlStatementName, ReadOnlySqlTransaction
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from agent import wire
from gpucloud.fastpath.database.outages import TRY_SECONDS, Outages, is_away
from tests.platform import ROOT
from tests.ports import free_port
from tests.processes import eventually, http_status
from tests.scheduling.programs import program

# Nothing listens on this port: connections are refused at once, as by a primary that was killed.
NOBODY = "postgresql://gpucloud@127.0.0.1:1,127.0.0.1:2/gpucloud?target_session_attrs=read-write"
SIGNED_IN = {"Cookie": "sessionid=abcdefghijklmnopqrstuvwxyz012345"}
TOKEN = {"Authorization": "Bearer gpu_0123456789abcdef0123456789abcdef"}
NODE = {"Authorization": "Bearer gpn_7c9e6679-7425-40de-944b-e07fc1f90ae7.secret"}
# The pool's patience of three seconds, and a busy machine.
SOON_SECONDS = 8.0
DOORS = [
    ("GET", "/api/v1/claims/", TOKEN),
    ("POST", "/api/v1/claims/", TOKEN),
    ("POST", "/api/v1/claims/?wait=5", TOKEN),
    ("PATCH", "/api/v1/claims/7c9e6679-7425-40de-944b-e07fc1f90ae7/", TOKEN),
    ("GET", "/api/v1/claims/", SIGNED_IN),
    ("GET", "/", SIGNED_IN),
    ("GET", "/claims/", SIGNED_IN),
    ("GET", "/admin/", SIGNED_IN),
    ("GET", "/metrics", TOKEN),
    ("GET", "/agent/job-files/7c9e6679-7425-40de-944b-e07fc1f90ae7", NODE),
]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Start a server without a database."""
    number = free_port()
    environment = {"DATABASE_URL": NOBODY, "DATABASE_POOL_SIZE": "4"}
    with program("-m", "gpucloud.server", "--port", str(number), "--log-level", "error", **environment):
        assert eventually(lambda: http_status(number, "/healthz") == 200, seconds=60)
        yield number


def ask(port: int, method: str, path: str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body."""
    headers = {"Content-Type": "application/json", **headers}
    data = b"{}" if method in ("POST", "PATCH") else None
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as refused:
        return refused.code, dict(refused.headers), refused.read()


@pytest.mark.parametrize(("method", "path", "headers"), DOORS)
def test_a_request_is_told_to_come_again(port: int, method: str, path: str, headers: dict[str, str]) -> None:
    begun = time.monotonic()
    status, told, body = ask(port, method, path, headers)
    assert status == 503, body
    assert int(told["retry-after"]) >= 1
    assert time.monotonic() - begun < SOON_SECONDS
    if path.startswith("/api/"):
        assert b"/problems/database-unavailable" in body
    assert b"Traceback" not in body


def test_many_requests_at_once_do_not_wait_for_one_another(port: int) -> None:
    """Four threads that each waited for the pool's three seconds would need half a minute for forty requests."""
    begun = time.monotonic()
    with ThreadPoolExecutor(40) as threads:
        answers = list(threads.map(lambda _: ask(port, "GET", "/api/v1/claims/", TOKEN)[0], range(40)))
    assert set(answers) == {503}
    assert time.monotonic() - begun < SOON_SECONDS


def test_a_page_that_watches_is_told_to_come_again(port: int) -> None:
    address = f"ws://127.0.0.1:{port}/ws/live/?claims=all"
    with pytest.raises(InvalidStatus) as refused:
        connect(address, additional_headers=SIGNED_IN, origin=Origin(f"http://127.0.0.1:{port}"), open_timeout=30)
    assert refused.value.response.status_code == 503
    assert refused.value.response.headers["Retry-After"] == "1"


def test_an_agent_is_told_that_the_server_is_busy(port: int) -> None:
    with (
        connect(f"ws://127.0.0.1:{port}/ws/agent/", additional_headers=NODE, open_timeout=30) as socket,
        pytest.raises(ConnectionClosed) as closed,
    ):
        socket.recv(timeout=30)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == wire.CLOSE_BUSY


def test_the_command_says_what_is_wrong(port: int) -> None:
    environment = {
        "GPUCLOUD_URL": f"http://127.0.0.1:{port}",
        "GPUCLOUD_TOKEN": "gpu_x",
        "GPUCLOUD_PATIENCE": "1",
        "PYTHONPATH": str(ROOT / "cli"),
    }
    command = [sys.executable, "-m", "gpucloud_cli", "claim", "list"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0
    assert "The database did not answer in time" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_one_thread_at_a_time_tries_and_the_first_success_ends_the_outage() -> None:
    now = [100.0]
    outages = Outages(clock=lambda: now[0])
    outages.check(never)
    outages.begin()
    with pytest.raises(DriverError):
        outages.check(never)
    now[0] += TRY_SECONDS
    trying, end = threading.Event(), threading.Event()

    def slowly() -> Connection:
        trying.set()
        end.wait(10)
        return Connection()

    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(outages.check, slowly)
        trying.wait(10)
        with pytest.raises(DriverError):
            outages.check(never)
        end.set()
        first.result()
    outages.check(never)


class Connection:
    def close(self) -> None:
        """Nothing to close."""


def never() -> Connection:
    raise AssertionError("no try was due")


def test_a_standby_that_takes_no_writes_counts_as_away() -> None:
    read_only, other = InternalError("cannot execute INSERT"), InternalError("no such statement")
    read_only.__cause__, other.__cause__ = ReadOnlySqlTransaction(), InvalidSqlStatementName()
    assert is_away(read_only)
    assert is_away(OperationalError())
    assert not is_away(other)
    assert not is_away(ValueError())
    assert not is_away(None)
