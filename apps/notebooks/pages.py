"""Answers of the server itself at a notebook's host: short pages in words."""

import html
from collections.abc import Awaitable, Callable
from typing import Any

from django.db import DatabaseError
from redis.exceptions import RedisError

from gpucloud.errors import Conflict, Denied, GpucloudError, Missing

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

PAGE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    "<title>{title}</title><body><h1>{title}</h1><p>{words}</p></body></html>"
)
BUSY = "The server cannot ask now: try again in a moment."
AGAIN_SECONDS = 2


class Refused(Exception):
    """Refusal of a request at a notebook's host, with its status in HTTP."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status, self.words = status, words


def refusal_of(error: Exception) -> Refused:
    """Return the refusal that an error of the services means. Raises what is none."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, GpucloudError):
        known = ((Denied, 403), (Missing, 404), (Conflict, 409))
        return Refused(next((status for kind, status in known if isinstance(error, kind)), 400), error.detail)
    if isinstance(error, DatabaseError | RedisError | OSError):
        return Refused(503, BUSY)
    raise error


async def send_refusal(send: Send, refused: Refused, *, repeats: bool = False) -> None:
    """Send the refusal as a page. `repeats`: the browser asks again in a moment."""
    title = "Notebook is not ready" if repeats else "Notebook cannot be opened"
    body = PAGE.format(title=title, words=html.escape(refused.words)).encode()
    headers = [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
    ]
    headers += [(b"refresh", str(AGAIN_SECONDS).encode())] if repeats else []
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
