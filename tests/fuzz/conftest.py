"""A real server on the test's database, for tests that speak HTTP with it."""

import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import connection

from tests.ports import free_port
from tests.scheduling.programs import program
from tests.scheduling.routes import Platform, module_platform

__all__ = ["module_platform"]

START_SECONDS = 60.0


@dataclass(frozen=True)
class Server:
    """A server's address, and its platform."""

    url: str
    platform: Platform

    @property
    def token(self) -> str:
        """Return the operator's token."""
        token = self.platform.cast.olga.token
        assert token is not None
        return token


@pytest.fixture(scope="module")
def server(module_platform: Platform, django_db_blocker: Any) -> Iterator[Server]:
    """Start a server as `make demo` does, without throttling: every answer is checked."""
    port = free_port()
    command = ("-m", "gpucloud.server", "--port", str(port), "--log-level", "warning")
    with django_db_blocker.unblock(), program(*command, DATABASE_POOL_SIZE="8", THROTTLE_PER_SECOND="0") as process:
        connection.close()
        deadline = time.monotonic() + START_SECONDS
        while not ready(f"http://127.0.0.1:{port}/readyz"):
            assert process.poll() is None, "the server ended while starting"
            assert time.monotonic() < deadline, f"the server was not ready after {START_SECONDS} s"
            time.sleep(0.1)
        yield Server(f"http://127.0.0.1:{port}", module_platform)


def ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - the address is ours
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
