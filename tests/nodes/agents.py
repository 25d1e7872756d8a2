"""An agent at the gateway, through the whole ASGI application."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

from asgiref.testing import ApplicationCommunicator
from channels.db import database_sync_to_async

from agent import wire
from apps.nodes.services import nodes
from gpucloud.asgi import application
from tests.cast import Machine, hello


def in_database(act: Callable[[], Any]) -> Any:
    """Run this in a thread that may use the database; awaitable."""
    return database_sync_to_async(act)()


def enrol_with(machine: Machine, secret: str) -> None:
    """Enrol the machine's agent with its key."""
    machine.node = nodes.enrol(token=machine.enrolment, key_digest=hashlib.sha256(secret.encode()).hexdigest())


class Agent:
    """One websocket of a node's agent."""

    def __init__(self, machine: Machine, credential: str) -> None:
        self.machine = machine
        headers = [(b"authorization", f"Bearer {credential}".encode("latin-1"))]
        scope = {"type": "websocket", "path": "/ws/agent/", "query_string": b"", "headers": headers, "subprotocols": []}
        self.socket = ApplicationCommunicator(application, scope)
        self.connected = False

    async def connect(self) -> "Agent":
        await self.socket.send_input({"type": "websocket.connect"})
        assert (await self.socket.receive_output(timeout=5))["type"] == "websocket.accept"
        self.connected = True
        return self

    async def greet(self, raw_frame: wire.Hello | None = None) -> wire.Desired:
        """Connect, say hello, and take the welcome and the desired state."""
        await self.connect()
        await self.say(raw_frame or hello(self.machine.name))
        welcome = await self.hear()
        assert isinstance(welcome, wire.Welcome)
        assert welcome.node_name == self.machine.name
        desired = await self.hear()
        assert isinstance(desired, wire.Desired)
        return desired

    async def say(self, frame: wire.Frame) -> None:
        await self.say_raw(wire.encode(frame))

    async def say_raw(self, text: str | bytes) -> None:
        kind = "bytes" if isinstance(text, bytes) else "text"
        await self.socket.send_input({"type": "websocket.receive", kind: text})

    async def hear(self) -> wire.FromServer:
        message = await self.socket.receive_output(timeout=5)
        assert message["type"] == "websocket.send", message
        return wire.decode_from_server(message["text"])

    async def closed(self) -> int:
        """Return the code with which the server closed the connection."""
        message = await self.socket.receive_output(timeout=5)
        assert message["type"] == "websocket.close", message
        assert len((message.get("reason") or "").encode()) <= 123
        return int(message["code"])

    async def quiet(self) -> bool:
        return bool(await self.socket.receive_nothing(timeout=0.2))

    async def hang_up(self) -> None:
        if self.connected:
            await self.socket.send_input({"type": "websocket.disconnect", "code": 1000})
            await self.socket.wait(timeout=5)


def raw_frame(frame: wire.Frame, /, **changes: Any) -> str:
    """Return the frame as text, with fields that its type would not allow."""
    return json.dumps({**json.loads(wire.encode(frame)), **changes})
