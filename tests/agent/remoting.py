"""Remote shares for the agent's tests: a node that serves them, programs that use them, a network that can be cut."""

import asyncio
import hashlib
import secrets
import shutil
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from agent import wire
from gpucloud_cli.remote_client import RemoteShare, new_key
from tests.agent import forked
from tests.agent.control import Connection, Control
from tests.agent.jobs import OWNER, USERS
from tests.agent.stage import Stage

DOUBLE = Path(__file__).with_name("remoting_double.py")
SECONDS = 30
# The tests' own may lie in a home directory, which other users cannot enter.
PYTHON = shutil.which("python3", path="/usr/bin:/bin") or sys.executable


class Remote:
    """A node with one claim, and the server's side of its tickets."""

    def __init__(self, stage: Stage, link: Connection, endpoint: wire.RemoteEndpoint) -> None:
        self.stage, self.link, self.endpoint = stage, link, endpoint
        self.claim = stage.assignment()
        self.said: list[str] = []
        self.shares: list[RemoteShare] = []
        self.frame = 0

    async def send(self, *assignments: wire.Assignment) -> None:
        self.frame += 1
        await self.link.send(wire.Desired(frame=self.frame, assignments=list(assignments)))

    async def ticket(self, claim: str | None = None, **more: Any) -> tuple[dict[str, Any], str]:
        """Give the agent a ticket; return the place of a client, and its key."""
        key, key_digest = new_key()
        ticket = secrets.token_urlsafe(32)
        facts: dict[str, Any] = {
            "claim_uid": claim or self.claim.claim_uid,
            "ticket": hashlib.sha256(ticket.encode()).hexdigest(),
            "key": key_digest,
            "seconds": 60,
            "owner": OWNER,
        }
        await self.link.send(wire.RemoteTicket(**(facts | more)))
        return self.place(ticket, claim), key

    def place(self, ticket: str, claim: str | None = None) -> dict[str, Any]:
        end = self.endpoint
        where = {"host": end.host, "port": end.port, "fingerprint": end.fingerprint}
        return {"claim": claim or self.claim.claim_uid, "ticket": ticket, **where}

    def share(self, place: dict[str, Any], key: str) -> RemoteShare:
        share = RemoteShare(place, key, self.said.append)
        self.shares.append(share)
        share.start()
        return share

    async def open(self, **more: Any) -> RemoteShare:
        return self.share(*await self.ticket(**more))

    def close(self) -> None:
        for share in self.shares:
            share.stop()


class Program:
    """A connection of a program to its machine's port."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
        self.lines = self.socket.makefile("rb")

    def ask(self, line: str) -> str:
        """Return the answer; empty if the connection has ended."""
        try:
            self.socket.sendall(f"{line}\n".encode())
            return self.lines.readline().decode().strip()
        except ConnectionError:
            return ""

    def close(self) -> None:
        self.lines.close()
        self.socket.close()


@pytest.fixture
async def remote(run_dir: Path, control: Control) -> AsyncIterator[Remote]:
    """Return a node whose agent lets remote clients in, with one claim in force."""
    root = run_dir / "machine"
    root.mkdir()
    server = root / "lupine_driver_server"
    server.write_text(f"#!{PYTHON} -IS\n{DOUBLE.read_text()}")
    server.chmod(0o755)
    stage = Stage(root, run_dir, control, agents=forked.server())
    stage.node_file.chmod(0o666)
    stage.start(GPUCLOUD_REMOTE="127.0.0.1:0", GPUCLOUD_REMOTE_USERS=USERS, GPUCLOUD_REMOTE_SERVER=str(server))
    hello, link = await hello_with_endpoint(control)
    stage.gpus = [gpu.uuid for gpu in hello.gpus]
    assert isinstance(hello.remote, wire.RemoteEndpoint)
    it = Remote(stage, link, hello.remote)
    await it.send(it.claim)
    await link.state(it.claim.uid, "in_force")
    yield it
    it.close()
    stage.close()


async def hello_with_endpoint(control: Control) -> tuple[wire.Hello, Connection]:
    """Return the first hello that has an endpoint; the agent connects again for it."""
    while True:
        link = await control.connection()
        hello = await link.expect(wire.Hello)
        if hello.remote is not UNSET:
            return hello, link


class Way:
    """A network between client and node that can be cut."""

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self._writers: list[asyncio.StreamWriter] = []
        self.refuses = self.is_silent = False
        self.cuts = 0
        self.port = 0
        self._server: asyncio.Server | None = None

    @classmethod
    async def open(cls, to_port: int) -> "Way":
        it = cls(to_port)
        it._server = await asyncio.start_server(it._serve, "127.0.0.1", 0)
        it.port = it._server.sockets[0].getsockname()[1]
        return it

    def cut(self) -> None:
        self.cuts += len(self._writers) // 2
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def close(self) -> None:
        self.cut()
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self._to_port)
        self._writers += [writer, back]
        await asyncio.gather(self._carry(reader, back), self._carry(there, writer), return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if not self.is_silent:
                writer.write(data)
                await writer.drain()
        writer.close()
