"""A small application behind uvicorn on loopback, and raw connections to it."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from gpucloud.server.protocol import BoundedProtocol


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the names of the request's headers, once its body is read."""
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return
        size += len(message["body"])
        if not message["more_body"]:
            break
    if scope["path"] == "/slow":
        await asyncio.sleep(1.0)
    body = json.dumps({"headers": [name.decode() for name, _ in scope["headers"]], "bytes": size}).encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def sockets(scope: Any, receive: Any, send: Any) -> None:
    """Accept a websocket and send back each text; answer HTTP as `echo` does."""
    if scope["type"] != "websocket":
        await echo(scope, receive, send)
        return
    while (message := await receive())["type"] != "websocket.disconnect":
        if message["type"] == "websocket.connect":
            await send({"type": "websocket.accept"})
        else:
            await send({"type": "websocket.send", "text": message["text"]})


@contextmanager
def serve(http: Any = BoundedProtocol) -> Iterator[int]:
    """Serve until the block ends; yield the port."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    config = uvicorn.Config(sockets, http=http, ws="websockets-sansio", lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        thread.join(timeout=30)
        listening.close()


class Connection:
    """A raw connection; `send` continues until the server refuses, and then returns False."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)

    def send(self, data: bytes) -> bool:
        try:
            self.socket.sendall(data)
        except OSError:
            return False
        return True

    def answers(self) -> bytes:
        """Return everything until the server closes or resets the connection."""
        received = b""
        try:
            while piece := self.socket.recv(1 << 16):
                received += piece
        except ConnectionResetError:
            pass
        finally:
            self.socket.close()
        return received


def send_all(port: int, *pieces: bytes) -> bytes:
    """Send the pieces and return all answers; the last request should ask to close the connection."""
    connection = Connection(port)
    for piece in pieces:
        if not connection.send(piece):
            break
    return connection.answers()


def status(answer: bytes) -> int:
    """Return the status of the first answer; 0 if the connection was closed without one."""
    return int(answer.split(b" ", 2)[1]) if answer else 0
