"""HTTP connections whose requests are bounded in size and time.

uvicorn and its parser keep a request's head until it is complete, with no limit on size or time. A proxy in front
usually bounds both; the server must not depend on one.
"""

import asyncio
import json
import logging
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# A sign-in by OpenID with its cookies takes 6 KiB; nginx allows 32 KiB and 1,000 headers, Node.js 16 KiB.
MOST_HEAD_BYTES = 64 * 1024
MOST_HEADERS = 100
# From the first byte of a request (or the connection) to the request's last byte.
REQUEST_SECONDS = 10.0
# A busy event loop may read bytes late that arrived in time: unread bytes are read during this last second.
GRACE_SECONDS = 1.0
# Time after a refusal, in which a client may keep sending and still read the answer.
LINGER_SECONDS = 1.0

logger = logging.getLogger(__name__)


def _answer(status: int, code: str, title: str, detail: str) -> bytes:
    # Same form as gpucloud.api.problems; the extender's process does not load the REST framework.
    body = json.dumps({"type": f"/problems/{code}", "title": title, "status": status, "detail": detail}).encode()
    head = (
        f"HTTP/1.1 {status} {title}\r\ncontent-type: application/problem+json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


TOO_LARGE = _answer(
    431,
    "headers-too-large",
    "Request Header Fields Too Large",
    f"A request has at most {MOST_HEADERS} headers and {MOST_HEAD_BYTES // 1024} KiB before its body.",
)
TOO_SLOW = _answer(
    408,
    "request-timeout",
    "Request Timeout",
    f"The request was not complete {REQUEST_SECONDS:g} seconds after it began.",
)


class HeadTooLarge(Exception):
    """The request has more headers, or larger ones, than allowed."""


class BoundedProtocol(HttpToolsProtocol):
    """One HTTP/1.1 connection whose requests are bounded in headers, bytes of headers and time.

    Answers 431 to a head (or a trailer section) past MOST_HEAD_BYTES or MOST_HEADERS, 408 to a request that is not
    complete after REQUEST_SECONDS, and closes the connection. While an earlier answer is being sent on the same
    connection, it closes without an answer. Trailers are counted and dropped: a proxy has not filtered them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Bytes since the last complete head, body chunk or request: an upper bound of the parser's buffer.
        self._unparsed = 0
        self._head_bytes = 0
        self._head_count = 0
        self._in_head = False
        self._complete = False
        self._too_large = False
        self._refused = False
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer: a connection that sends nothing counts as an incomplete request."""
        super().connection_made(transport)
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_clock()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse `data` within the bounds; discard it after a refusal."""
        if self._refused:
            return
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > MOST_HEAD_BYTES:
            self._refuse(TOO_LARGE)
        elif self._complete and not self._unparsed:
            if self._deadline is not None:
                self._stop_clock()
        elif self._deadline is None and not self.transport.is_closing():
            self._start_clock()

    def handle_websocket_upgrade(self) -> None:
        """Stop the timer: the websocket's own protocol takes over."""
        self._stop_clock()
        self._complete, self._unparsed = True, 0
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that the parser rejected."""
        if self._too_large:
            self._refuse(TOO_LARGE)
        else:
            super().send_400_response(msg)

    def on_message_begin(self) -> None:
        """Reset the counts for a new request."""
        self._head_bytes = self._head_count = 0
        self._in_head, self._complete = True, False
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Count a part of the URL."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count one header, and keep it unless it is a trailer."""
        self._head_count += 1
        # A colon, a space and the line end.
        self._count(len(name) + len(value) + 4)
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Pass the complete head on."""
        self._in_head, self._unparsed = False, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass a chunk of the body on."""
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Record that the request is complete."""
        self._complete, self._unparsed = True, 0
        super().on_message_complete()

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MOST_HEAD_BYTES or self._head_count > MOST_HEADERS:
            self._too_large = True
            raise HeadTooLarge

    def _start_clock(self) -> None:
        self._deadline = self.loop.call_later(REQUEST_SECONDS - GRACE_SECONDS, self._expire)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        if self.flow.read_paused or (self._answering and (self._complete or self._in_head)):
            # Reading is paused, or the request before this one is not answered: the client is not the slow side.
            self._start_clock()
        else:
            self._deadline = self.loop.call_later(GRACE_SECONDS, self._refuse, TOO_SLOW)

    @property
    def _answering(self) -> bool:
        cycle: Any = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete

    def _refuse(self, answer: bytes) -> None:
        """Refuse the request and close; send the answer unless another one is being sent or no request was begun."""
        self._stop_clock()
        self._unset_keepalive_if_required()
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        if self._answering or (answer is TOO_SLOW and not self._unparsed):
            self.transport.close()
            return
        self.transport.write(answer)
        self.loop.call_later(LINGER_SECONDS, self.transport.close)
