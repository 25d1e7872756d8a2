"""Request threads: refreshes of open pages leave some of them to other requests."""

import asyncio
import threading
from typing import Any

import pytest
from django.http import HttpResponse

from gpucloud.fastpath.serving import SingleThreadHandler

PART = [(b"hx-request", b"true")]


class Blocked(SingleThreadHandler):
    """A handler in which refreshes wait for `go`; `begun` counts all that got a thread."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.begun: list[str] = []

    def _respond(self, scope: Any, body: Any, here: asyncio.AbstractEventLoop) -> HttpResponse:
        self.begun.append(scope["method"])
        if (scope["method"], scope["headers"]) == ("GET", PART):
            self.go.wait(20)
        return HttpResponse(b"done")

    async def ask(self, method: str, headers: list[tuple[bytes, bytes]]) -> int:
        """Return the status."""
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await self({"type": "http", "method": method, "path": "/", "headers": headers}, receive, send)
        return int(sent[0]["status"])


@pytest.mark.parametrize(("method", "headers"), [("PATCH", []), ("GET", []), ("POST", PART)])
async def test_whoever_wants_something_done_passes_pages_that_refresh(
    settings: Any, method: str, headers: list[tuple[bytes, bytes]]
) -> None:
    settings.REQUEST_THREADS = 4
    server = Blocked()
    pages = [asyncio.ensure_future(server.ask("GET", PART)) for _ in range(10)]
    try:
        assert await asyncio.wait_for(server.ask(method, headers), 10) == 200
        assert server.begun.count("GET") - (method == "GET") == 2
    finally:
        server.go.set()
    # They are only later.
    assert await asyncio.gather(*pages) == [200] * 10
