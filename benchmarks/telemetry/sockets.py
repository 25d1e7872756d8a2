"""Websockets of the load generator: real frames over loopback, in one process that does as little as possible.

A frame is made once for each node; each second only its number and its time are written into it. Frames are masked with
zeros, which the protocol allows and which leaves the payload unchanged.
"""

import asyncio
import base64
import os
import struct
from collections.abc import Callable
from typing import cast

TEXT, CLOSE, PING, PONG = 1, 8, 9, 10
UPGRADE = (
    "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
    "Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n{more}\r\n"
)


def make_frame(payload: bytes, kind: int = TEXT) -> bytes:
    """Return a client's frame around this payload."""
    size = len(payload)
    if size < 126:
        head = struct.pack(">BB", 0x80 | kind, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack(">BBH", 0x80 | kind, 0x80 | 126, size)
    else:
        head = struct.pack(">BBQ", 0x80 | kind, 0x80 | 127, size)
    return head + b"\0\0\0\0" + payload


class Socket(asyncio.Protocol):
    """One websocket. `heard` is called with each text message's bytes."""

    def __init__(self, request: bytes, heard: Callable[[bytes], None]) -> None:
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.closed = ""
        self._request = request
        self._heard = heard
        self._buffer = b""
        self._parts = b""
        self._transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._transport.write(self._request)

    def send(self, frame: bytes) -> None:
        """Send a framed message."""
        self._transport.write(frame)

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = self.closed or str(exc or "hung up")
        if not self.opened.done():
            self.opened.set_exception(ConnectionError(self.closed))

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        if not self.opened.done() and not self._open():
            return
        while self._next():
            pass

    def _open(self) -> bool:
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return False
        if b" 101 " not in head[:20]:
            self.opened.set_exception(ConnectionError(head[:200].decode(errors="replace")))
            self._transport.close()
            return False
        self._buffer = rest
        self.opened.set_result(None)
        return True

    def _next(self) -> bool:
        """Take one frame off the buffer; servers do not mask theirs."""
        data = self._buffer
        if len(data) < 2:
            return False
        size, begin = data[1] & 127, 2
        if size == 126:
            size, begin = int.from_bytes(data[2:4], "big"), 4
        elif size == 127:
            size, begin = int.from_bytes(data[2:10], "big"), 10
        if len(data) < begin + size:
            return False
        payload, self._buffer = data[begin : begin + size], data[begin + size :]
        self._take(data[0] & 15, bool(data[0] & 128), payload)
        return True

    def _take(self, kind: int, final: bool, payload: bytes) -> None:
        if kind == PING:
            self.send(make_frame(payload, PONG))
        elif kind == CLOSE:
            self.closed = f"closed with {payload[:2].hex()}: {payload[2:].decode(errors='replace')}"
        elif kind in (0, TEXT):
            self._parts += payload
            if final:
                whole, self._parts = self._parts, b""
                self._heard(whole)


async def open_socket(port: int, path: str, heard: Callable[[bytes], None], **headers: str) -> Socket:
    """Connect.

    Raises ConnectionError.
    """
    more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    key = base64.b64encode(os.urandom(16)).decode()
    request = UPGRADE.format(path=path, port=port, key=key, more=more).encode()
    loop = asyncio.get_running_loop()
    _, socket = await loop.create_connection(lambda: Socket(request, heard), "127.0.0.1", port)
    await asyncio.wait_for(socket.opened, 60)
    return socket
