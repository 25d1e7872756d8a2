"""Bodies, bounded before Django keeps them: Django reads a request to its end, onto the disk, before any view runs.

A chunked body has no length, and what has no length looks empty to the REST framework. So it is read here, up to the
limit, and passed on with its length.
"""

import json
from typing import Any

from asgiref.typing import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, HTTPScope
from django.conf import settings

from gpucloud.api.problems import MEDIA_TYPE, problem


class BoundedBody:
    """Wraps the HTTP application: no request here, of a program or of a page, needs more than a few kilobytes."""

    def __init__(self, application: ASGI3Application) -> None:
        self.application = application

    async def __call__(self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Pass on what fits; answer 413 to the rest, having read no more of it than fits."""
        limit: int = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        length = dict(scope["headers"]).get(b"content-length")
        if length is not None:
            # Nineteen digits are too many, whatever number they are, and the interpreter reads no thousands of them.
            too_large = len(length) > 18 or (length.isdigit() and int(length) > limit)
            await (_refuse(send) if too_large else self.application(scope, receive, send))
        elif (messages := await _read(receive, limit)) is None:
            await _refuse(send)
        else:
            size = sum(len(message.get("body", b"")) for message in messages)
            headers = [*scope["headers"], (b"content-length", str(size).encode())] if size else scope["headers"]
            inner: Any = {**scope, "headers": headers}
            await self.application(inner, _again(messages, receive), send)


async def _read(receive: ASGIReceiveCallable, limit: int) -> list[Any] | None:
    """The request's messages up to its end, or None where they hold more than the limit."""
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
    """What was read, then whatever comes."""
    rest = iter(messages)

    async def replay() -> Any:
        for message in rest:
            return message
        return await receive()

    return replay


async def _refuse(send: ASGISendCallable) -> None:
    detail = "The body is larger than 1 MiB; no request needs that."
    body = json.dumps(problem(413, "body-too-large", "Content Too Large", detail)).encode()
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 413, "headers": headers, "trailers": False})
    await send({"type": "http.response.body", "body": body, "more_body": False})
