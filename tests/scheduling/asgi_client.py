"""An API client for the whole ASGI application, in the test's event loop."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from asgiref.testing import ApplicationCommunicator
from channels.db import database_sync_to_async

from gpucloud.asgi import application
from tests.cast import UNSAID, Answer, Api


def in_database(act: Callable[[], Any]) -> Any:
    """Run this in a thread that may use the database; awaitable."""
    return database_sync_to_async(act)()


class Request:
    """A request in progress."""

    def __init__(self, who: Api, method: str, target: str, **headers: str) -> None:
        path, _, query = target.partition("?")
        said = {"host": "testserver", "content-type": "application/json", **headers}
        if who.token is not None:
            said["authorization"] = f"Bearer {who.token}"
        self.exchange = ApplicationCommunicator(
            application,
            {
                "type": "http", "http_version": "1.1", "method": method, "path": f"/api/v1/{path}", "root_path": "",
                "raw_path": f"/api/v1/{path}".encode(), "query_string": query.encode(), "scheme": "http",
                "client": ("127.0.0.1", 1), "server": ("testserver", 80),
                "headers": [(name.replace("_", "-").lower().encode(), value.encode()) for name, value in said.items()],
            },
        )  # fmt: skip

    async def send(self, body: bytes, *, more: bool = False) -> None:
        await self.exchange.send_input({"type": "http.request", "body": body, "more_body": more})

    async def answer(self, seconds: float = 20) -> Answer:
        async with asyncio.timeout(seconds):
            start = await self.exchange.receive_output(timeout=seconds)
            raw, more = b"", True
            while more:
                part = await self.exchange.receive_output(timeout=seconds)
                raw, more = raw + part.get("body", b""), part.get("more_body", False)
            await self.exchange.wait(timeout=seconds)
        headers = {name.decode().title().replace("Etag", "ETag"): value.decode() for name, value in start["headers"]}
        return Answer(start["status"], headers, raw, json.loads(raw) if raw else None)


async def call(who: Api, method: str, target: str, body: Any = UNSAID, **headers: str) -> Answer:
    """Send one request with its length, as most clients do."""
    raw = b"" if body is UNSAID else json.dumps(body).encode()
    request = Request(who, method, target, content_length=str(len(raw)), **headers)
    await request.send(raw)
    return await request.answer()
