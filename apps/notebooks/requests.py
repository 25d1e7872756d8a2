"""HTTP requests at a notebook's host, and their way to Jupyter and back; neither is ever held as a whole."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote
from uuid import UUID

import httpcore
from django.db import DatabaseError
from redis.exceptions import RedisError

from apps.notebooks import admission, policy
from apps.notebooks.entries import Entry
from apps.notebooks.pages import Receive, Refused, Send, refusal_of, send_refusal
from apps.notebooks.slots import FairSlots
from apps.notebooks.streams import connections
from apps.tunnels.rights import Opening
from gpucloud.errors import GpucloudError

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
MOST_UPLOAD_BYTES = 512 << 20
# Jupyter may pack or copy much before it begins to answer.
TIMEOUTS = {"connect": 20.0, "pool": 30.0, "write": 120.0, "read": 600.0}
# A browser that reads nothing for so long is not a slow one.
READS_WITHIN_SECONDS = 600.0
# Requests that one server process answers at a time; a tunnel's window of memory each.
MOST_OF_SERVER = 1024

slots = FairSlots(MOST_OF_SERVER, "requests")


class Gone(Exception):
    """End of the browser's connection before its request was over."""


async def serve(uid: UUID | None, scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Serve one request."""
    try:
        if scope["path"] == admission.ENTRANCE:
            await admission.enter(uid, scope, send)
            return
        if any(name == b"service-worker" for name, _ in scope["headers"]):
            # It would see the tickets of those who enter after it.
            raise Refused(403, "A notebook has no service workers.")
        is_use = scope["method"] not in ("GET", "HEAD", "OPTIONS")
        entry, opening = await admission.admit(uid, scope, is_use=is_use)
        if scope["method"] not in METHODS:
            raise Refused(405, "A notebook takes no such method.")
        body = Body(scope, receive)
        slots.check(opening.job.tenant_id)
    except (Refused, GpucloudError, DatabaseError, RedisError, OSError) as error:
        await send_refusal(send, refusal_of(error))
        return
    with slots.taken(opening.job.tenant_id):
        await _forward(entry, opening, scope, body, send)


class Body:
    """The body of a request, read as it is sent on."""

    def __init__(self, scope: dict[str, Any], receive: Receive) -> None:
        length = policy.find(scope["headers"], b"content-length")
        if length.isdecimal() and int(length) > MOST_UPLOAD_BYTES:
            raise Refused(413, f"A notebook takes {MOST_UPLOAD_BYTES >> 20} MiB at once: split the file.")
        self.is_there = bool(length) or bool(policy.find(scope["headers"], b"transfer-encoding"))
        self._receive, self._is_read = receive, asyncio.Event()
        if not self.is_there:
            self._is_read.set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield its pieces. Raises Gone, Refused."""
        size, is_more = 0, True
        while is_more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Gone
            size += len(message.get("body", b""))
            if size > MOST_UPLOAD_BYTES:
                raise Refused(413, f"A notebook takes {MOST_UPLOAD_BYTES >> 20} MiB at once: split the file.")
            if message.get("body"):
                yield message["body"]
            is_more = message.get("more_body", False)
        self._is_read.set()

    async def await_end(self) -> None:
        """Return when the browser hangs up after its body."""
        await self._is_read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


async def _forward(entry: Entry, opening: Opening, scope: dict[str, Any], body: Body, send: Send) -> None:
    """Exchange request and answer; stop when the browser hangs up, or the person may no more."""
    begun = asyncio.Event()
    coroutines = (
        _exchange(opening, scope, body, send, begun),
        body.await_end(),
        admission.watch(entry, opening, scope, lambda: False),
    )
    tasks = [asyncio.ensure_future(one) for one in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        exchanged, _, watched = await asyncio.gather(*tasks, return_exceptions=True)
    if isinstance(watched, GpucloudError) and not begun.is_set():
        await send_refusal(send, refusal_of(watched))
        return
    for ended in (exchanged, watched):
        if isinstance(ended, Exception) and not isinstance(ended, Gone):
            # In the middle of an answer: the server closes the connection.
            raise ended


async def _exchange(opening: Opening, scope: dict[str, Any], body: Body, send: Send, begun: asyncio.Event) -> None:
    target = scope.get("raw_path") or quote(scope["path"]).encode()
    target += b"?" + scope["query_string"] if scope["query_string"] else b""
    url = httpcore.URL(scheme=b"http", host=b"localhost", port=80, target=target)
    headers = policy.to_jupyter(scope["headers"], opening.run_uid)
    try:
        async with (
            connections(opening) as pool,
            pool.stream(
                scope["method"], url, headers=headers, content=aiter(body) if body.is_there else None,
                extensions={"timeout": TIMEOUTS},
            ) as answer,
        ):  # fmt: skip
            begin = {"type": "http.response.start", "status": answer.status}
            begun.set()
            await send({**begin, "headers": policy.to_browser(answer.headers)})
            async for piece in answer.aiter_stream():
                async with asyncio.timeout(READS_WITHIN_SECONDS):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
    except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError, Refused) as error:
        if begun.is_set():
            raise
        refused = error if isinstance(error, Refused) else Refused(*_words_of(error))
        is_page = policy.find(scope["headers"], b"sec-fetch-mode") == "navigate"
        await send_refusal(send, refused, repeats=refused.status == 503 and is_page)


def _words_of(error: Exception) -> tuple[int, str]:
    if isinstance(error, httpcore.PoolTimeout):
        return 503, "The notebook has too many requests at once: try again."
    if isinstance(error, httpcore.LocalProtocolError):
        return 400, "This is no valid request."
    if isinstance(error, httpcore.RemoteProtocolError):
        return 502, "The notebook closed the connection."
    if isinstance(error, httpcore.TimeoutException):
        return 504, f"{error}."
    return 503, str(error)
