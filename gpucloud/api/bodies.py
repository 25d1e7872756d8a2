"""Limits on request bodies, applied before Django buffers them: it spools a whole request to disk before any view runs.

A chunked body has no length, and the REST framework treats a body without a length as empty. So the body is read here,
up to the limit, and passed on with its length.
"""

import json
from typing import Any

from asgiref.typing import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, HTTPScope
from django.conf import settings

from gpucloud.api.problems import MEDIA_TYPE, problem

# Limit for all bodies in this process that are larger than one chunk, together: no request needs one.
MOST_HELD_BYTES = 64 << 20
PIECE_BYTES = 64 << 10


class BoundedBody:
    """ASGI middleware that bounds HTTP bodies: no request of a program or a page needs more than a few kilobytes.

    A thousand clients that each send a large body and never end it occupy MOST_HELD_BYTES together, not a thousand
    times the limit of one body.
    """

    def __init__(self, application: ASGI3Application) -> None:
        self.application = application
        self.held_bytes = 0

    async def __call__(self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Pass on a body within the limit; answer 413 to a larger one and 503 when memory for bodies is full.

        A body above the limit is read up to the limit only.
        """
        limit: int = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        size = _announced(scope, limit)
        if size > limit:
            await _refuse(send)
        elif size <= PIECE_BYTES:
            await self._pass_on(scope, receive, send, limit)
        elif self.held_bytes + size > MOST_HELD_BYTES:
            await _refuse_for_now(send)
        else:
            self.held_bytes += size
            try:
                await self._pass_on(scope, receive, send, limit)
            finally:
                self.held_bytes -= size

    async def _pass_on(
        self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable, limit: int
    ) -> None:
        if _header(scope, b"content-length") is not None:
            await self.application(scope, receive, send)
        elif (messages := await _read(receive, limit)) is None:
            await _refuse(send)
        else:
            size = sum(len(message.get("body", b"")) for message in messages)
            headers = [*scope["headers"], (b"content-length", str(size).encode())] if size else scope["headers"]
            inner: Any = {**scope, "headers": headers}
            await self.application(inner, _again(messages, receive), send)


def _announced(scope: HTTPScope, limit: int) -> int:
    """Return the largest possible size of the body in bytes; `limit` if not announced; above `limit`: too large."""
    length = _header(scope, b"content-length")
    if length is None:
        return 0 if _header(scope, b"transfer-encoding") is None else limit
    # Nineteen digits are above any limit, and int() rejects very long numbers.
    if len(length) > 18:
        return limit + 1
    return int(length) if length.isdigit() else 0


def _header(scope: HTTPScope, name: bytes) -> bytes | None:
    return dict(scope["headers"]).get(name)


async def _read(receive: ASGIReceiveCallable, limit: int) -> list[Any] | None:
    """Return the request's messages up to its end, or None if they exceed the limit."""
    messages: list[Any] = []
    left = limit
    while True:
        message: Any = await receive()
        messages.append(message)
        left -= len(message.get("body", b""))
        if left < 0:
            return None
        if message["type"] != "http.request" or not message.get("more_body", False):
            return messages


def _again(messages: list[Any], receive: ASGIReceiveCallable) -> ASGIReceiveCallable:
    """Replay the messages that were read, then receive further ones."""
    rest = iter(messages)

    async def replay() -> Any:
        for message in rest:
            return message
        return await receive()

    return replay


async def _refuse(send: ASGISendCallable) -> None:
    detail = "The body is larger than 1 MiB; no request needs that."
    await _answer(send, problem(413, "body-too-large", "Content Too Large", detail))


async def _refuse_for_now(send: ASGISendCallable) -> None:
    detail = "Too many large bodies are being received: send it again in a few seconds, or a smaller one."
    await _answer(send, problem(503, "too-many-bodies", "Try again later", detail), (b"retry-after", b"10"))


async def _answer(send: ASGISendCallable, body: dict[str, Any], *more: tuple[bytes, bytes]) -> None:
    text = json.dumps(body).encode()
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(text)).encode()), *more]
    await send({"type": "http.response.start", "status": body["status"], "headers": headers, "trailers": False})
    await send({"type": "http.response.body", "body": text, "more_body": False})
