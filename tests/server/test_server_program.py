"""`python -m gpucloud.server`: the only start of the web server."""

import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from django.conf import settings
from websockets.sync.client import connect

from gpucloud.server import __main__ as entry
from tests.ports import free_port
from tests.processes import eventually
from tests.scheduling.programs import program
from tests.server.serving import send_all, status

CLIENTS = 1000
KIB = 1024
BEGIN = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
# Starting uvicorn on the application itself bypasses the bounds.
UNBOUNDED = ("uvicorn gpucloud" + ".asgi", '"uvicorn", ' + '"gpucloud', "--timeout-worker" + "-healthcheck 5 ")


@pytest.fixture
def server(transactional_db: None) -> Iterator[tuple[int, int]]:
    """Start a server; return its port and process id."""
    port = free_port()
    with program("-m", "gpucloud.server", "--port", str(port), "--log-level", "error") as process:
        assert eventually(lambda: healthy(port), seconds=60)
        yield port, process.pid


def healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=30) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def resident_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


@pytest.mark.django_db(transaction=True)
def test_a_thousand_clients_that_never_finish_are_bounded_in_memory(server: tuple[int, int]) -> None:
    """Each begins a head and keeps sending it; all are refused or held within 64 KiB, and others are served."""
    port, pid = server
    entry.raise_file_limit()
    before = most = resident_kib(pid)
    with ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)) for _ in range(CLIENTS)
        ]
        for piece in (BEGIN + b"X-Long: ", *[b"v" * 50 * KIB] * 10):
            for client in clients:
                try:
                    client.sendall(piece)
                except OSError:
                    continue
            assert healthy(port)
            most = max(most, resident_kib(pid))
    assert most - before < 200 * KIB


@pytest.mark.django_db(transaction=True)
def test_the_server_bounds_what_it_is_sent(server: tuple[int, int]) -> None:
    port, _ = server
    assert status(send_all(port, BEGIN, b"".join(b"X-%d: v\r\n" % n for n in range(101)), b"\r\n")) == 431
    assert status(send_all(port, BEGIN, b"\r\n")) == 200


@pytest.mark.django_db(transaction=True)
def test_messages_of_websockets_are_not_compressed(server: tuple[int, int]) -> None:
    """Many of them fit into one read, and all would be there in full before the first is taken."""
    port, _ = server
    with connect(f"ws://127.0.0.1:{port}/ws/tunnel/", compression="deflate") as websocket:
        assert not websocket.protocol.extensions


def test_a_busy_worker_is_given_a_minute_before_it_is_replaced() -> None:
    assert entry.DEFAULTS["timeout_worker_healthcheck"] == 60


def test_nothing_starts_the_application_past_its_server() -> None:
    root = settings.BASE_DIR
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True, text=True).stdout
    files = [root / name for name in listed.split("\0") if name and "/vendor/" not in name]
    texts = {
        file: file.read_text(errors="replace") for file in files if file.is_file() and file.stat().st_size < 1 << 20
    }
    found = [str(file.relative_to(root)) for file, text in texts.items() if any(way in text for way in UNBOUNDED)]
    assert found == []


LOADED = """
import sys
import gpucloud.asgi
from django.urls import get_resolver
get_resolver()._populate()
print(*sys.modules)
"""
# Placement, clusters, OpenID sign-ins and webhooks load them when needed.
NOT_AT_THE_START = {"numpy", "kubernetes", "authlib", "joserfc", "httpx", "rich", "oauthlib", "scipy", "pynvml"}
# REST framework and Django load them if they are installed; see gpucloud/fastpath/optional_libraries.py.
NOT_AT_THE_START |= {"requests", "pygments", "jinja2", "charset_normalizer"}


@pytest.mark.slow
def test_a_server_starts_without_the_libraries_that_few_of_its_requests_need() -> None:
    """They were a fifth of the processor time of a start, and of its memory."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED], cwd=settings.BASE_DIR, capture_output=True, check=True, text=True
    )
    assert NOT_AT_THE_START & set(done.stdout.split()) == set()
