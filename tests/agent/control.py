"""A small control plane with controllable faults: enrolment over HTTP, the agent protocol over a real websocket.

One port, like the real one: a front passes websockets on to the `websockets` server behind it and answers the two REST
routes that the agent uses itself.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from typing import Any, TypeVar

import websockets
from websockets.asyncio.server import Server, ServerConnection, serve

from agent import wire

T = TypeVar("T")
NODE_UID = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
# On an idle machine everything comes within a second or two; a busy one may take its time.
PATIENCE_SECONDS = 30.0


class Connection:
    """One websocket of the agent, with all its messages."""

    def __init__(self, socket: ServerConnection) -> None:
        self.socket = socket
        self.authorization = socket.request.headers.get("Authorization", "") if socket.request else ""
        self.frames: list[wire.FromAgent] = []
        self.heard = asyncio.Event()
        self.closed = asyncio.Event()

    async def send(self, frame: wire.Frame) -> None:
        await self.socket.send(wire.encode(frame))

    async def expect(
        self, kind: type[T], holds: Callable[[T], bool] = lambda _: True, *, seconds: float = PATIENCE_SECONDS
    ) -> T:
        """Return the first frame of this kind that satisfies the condition, received already or later."""
        async with asyncio.timeout(seconds):
            seen = 0
            while True:
                for frame in self.frames[seen:]:
                    if isinstance(frame, kind) and holds(frame):
                        return frame
                seen = len(self.frames)
                self.heard.clear()
                await self.heard.wait()

    def forget(self) -> None:
        """Forget received frames."""
        self.frames.clear()

    async def state(self, uid: str, state: str, generation: int | None = None) -> wire.Observation:
        """Wait until the agent reports this state of the assignment."""

        def found(frame: wire.Observed) -> wire.Observation | None:
            for one in frame.assignments:
                if one.uid == uid and one.state == state and generation in (None, one.generation):
                    return one
            return None

        result = found(await self.expect(wire.Observed, lambda frame: found(frame) is not None))
        assert result is not None
        return result


class Control:
    """The server's side; its attributes set its behaviour."""

    def __init__(self) -> None:
        self.port = 0
        self.enrolments: list[dict[str, Any]] = []
        # Answers to the next enrolments, in order: "drop" the connection after reading, or a (status, problem).
        self.enrol_faults: list[str | tuple[int, dict[str, Any]]] = []
        # Close the next websockets right after accepting them, with these codes.
        self.close_codes: list[int] = []
        self.close_reason = "as the test wants it"
        # Refuse the next websockets before they are any with these statuses, as a proxy would.
        self.handshake_statuses: list[int] = []
        self.welcomes = True
        # False: an older server, which ends the connection at the first `Health` frame.
        self.takes_health = True
        # True: as the real server does. Without it the agent falls silent after `outbox.MAX_IN_FLIGHT` usage frames.
        self.acknowledges = True
        # As the real server does: a newer connection replaces the older one.
        self.supersedes = False
        self._newest: Connection | None = None
        # Files to serve, by path.
        self.files: dict[str, bytes] = {}
        # The archive of every run, in pieces; after so many it falls silent. What was asked for, and by whom.
        self.archive = b""
        self.piece_bytes, self.pieces_before_pause = 1 << 20, 1 << 30
        self.offsets: list[int] = []
        self.credentials: set[str] = set()
        # Offset of its clock from the true time.
        self.clock_offset_seconds = 0.0
        self.claim_environments: dict[str, dict[str, Any]] = {}
        self.tokens_seen: list[str] = []
        self.connections: asyncio.Queue[Connection] = asyncio.Queue()
        # The websockets that the agent dials for tunnels.
        self.tunnels: asyncio.Queue[ServerConnection] = asyncio.Queue()
        self.attempts: list[float] = []
        self._front: asyncio.Server | None = None
        self._sockets: Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Serve, on the same port as before if there was one."""
        self._sockets = await serve(self._agent, "127.0.0.1", 0, max_size=4 << 20, close_timeout=0.2)
        self._front = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._front.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._front is not None and self._sockets is not None:
            self._front.close()
            self._sockets.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._sockets.wait_closed()

    async def connection(self, seconds: float = PATIENCE_SECONDS) -> Connection:
        """Return the agent's next connection."""
        async with asyncio.timeout(seconds):
            return await self.connections.get()

    async def _agent(self, socket: ServerConnection) -> None:
        if socket.request is not None and socket.request.path == "/ws/tunnel/":
            await self.tunnels.put(socket)
            await socket.wait_closed()
            return
        self.attempts.append(time.monotonic())
        if self.close_codes:
            await socket.close(self.close_codes.pop(0), self.close_reason)
            return
        connection = Connection(socket)
        if self.supersedes and self._newest is not None:
            await self._newest.socket.close(wire.CLOSE_SUPERSEDED, "another connection of this node took over")
        self._newest = connection
        with contextlib.suppress(websockets.ConnectionClosed):
            connection.frames.append(wire.decode_from_agent(await socket.recv()))
            if self.welcomes:
                welcome = wire.Welcome(
                    node_uid=NODE_UID,
                    node_name="sim-1",
                    server_time=time.time() + self.clock_offset_seconds,
                    health=self.takes_health,
                )
                await connection.send(welcome)
            await self.connections.put(connection)
            async for text in socket:
                frame = wire.decode_from_agent(text)
                connection.frames.append(frame)
                connection.heard.set()
                if self.acknowledges and isinstance(frame, wire.Usage):
                    await connection.send(wire.Ack(seq=frame.seq))
        connection.closed.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET /ws/agent/ ") and self.handshake_statuses:
                writer.write(f"HTTP/1.1 {self.handshake_statuses.pop(0)} x\r\nContent-Length: 0\r\n\r\n".encode())
            elif head.startswith((b"GET /ws/agent/ ", b"GET /ws/tunnel/ ")):
                await self._pass_on(head, reader, writer)
            else:
                await self._answer(head, reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            # The agent left, or the server stops: this connection is over.
            pass
        finally:
            writer.close()

    async def _pass_on(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._sockets is not None
        port = next(iter(self._sockets.sockets)).getsockname()[1]
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        inner_writer.write(head)
        try:
            ways = [asyncio.create_task(_pipe(reader, inner_writer)), asyncio.create_task(_pipe(inner_reader, writer))]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
        finally:
            inner_writer.close()

    async def _answer(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        path = lines[0].split()[1]
        if path.startswith("/agent/job-files/"):
            self.credentials.add(headers.get("authorization", ""))
            await self._answer_piece(path.removeprefix("/agent/job-files/"), writer)
            return
        if path in ("/api/v1/nodes/enrol/", "/api/v1/clusters/join/"):
            status, answer = self._enrol(json.loads(body))
        else:
            self.tokens_seen.append(headers.get("authorization", ""))
            status, answer = (200, {"status": "ok"}) if path == "/healthz" else self._environment(path)
        if path in self.files:
            writer.write(f"HTTP/1.1 200 x\r\nContent-Length: {len(self.files[path])}\r\n".encode())
            writer.write(b"Connection: close\r\n\r\n" + self.files[path])
            await writer.drain()
            return
        if status:
            text = json.dumps(answer).encode()
            kind = "application/json" if status == 200 else "application/problem+json"
            writer.write(f"HTTP/1.1 {status} x\r\nContent-Type: {kind}\r\nContent-Length: {len(text)}\r\n".encode())
            writer.write(b"Connection: close\r\n\r\n" + text)
            await writer.drain()

    async def _answer_piece(self, asked: str, writer: asyncio.StreamWriter) -> None:
        """Answer `UID?offset=N` as the real server does."""
        _, _, offset = asked.partition("?offset=")
        at = int(offset)
        self.offsets.append(at)
        if len(self.offsets) > self.pieces_before_pause:
            await asyncio.sleep(PATIENCE_SECONDS)
        data = self.archive[at : at + self.piece_bytes]
        writer.write(f"HTTP/1.1 200 x\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
        await writer.drain()

    def _enrol(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.enrolments.append(body)
        fault = self.enrol_faults.pop(0) if self.enrol_faults else None
        if fault == "drop":
            return 0, {}
        if isinstance(fault, tuple):
            return fault
        return 200, {"node_uid": NODE_UID, "node_name": "sim-1"}

    def _environment(self, path: str) -> tuple[int, dict[str, Any]]:
        for uid, answer in self.claim_environments.items():
            if path == f"/api/v1/claims/{uid}/env/":
                return 200, answer
        return 404, {"type": "about:blank", "title": "Not found", "status": 404}


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
