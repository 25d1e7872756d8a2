"""Websockets at a notebook's host: Jupyter's kernels and terminals."""

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from typing import Any
from urllib.parse import quote
from uuid import UUID

import httpcore
from django.db import DatabaseError
from redis.exceptions import RedisError
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from apps.notebooks import admission, policy
from apps.notebooks.entries import Entry
from apps.notebooks.pages import Receive, Refused, Send
from apps.notebooks.slots import FairSlots
from apps.notebooks.streams import Stream
from apps.tunnels.ends import Ended
from apps.tunnels.rights import JobDoesNotRun, Opening
from gpucloud.errors import GpucloudError

logger = logging.getLogger(__name__)

# Of one notebook in one server process, and of all: each may hold one message of the size below.
MOST_SOCKETS, MOST_OF_SERVER = 32, 256
# Of one message, which a websocket of the server's has to hold; Jupyter's own default from browsers is the same.
MOST_MESSAGE_BYTES = 10 << 20
CHUNK_BYTES, OPEN_SECONDS, READS_WITHIN_SECONDS = 32 << 10, 20.0, 600.0
# RFC 6455: policy, too big; and what a program may not say.
POLICY, TOO_BIG, GOING_AWAY, NOT_TO_SEND = 1008, 1009, 1001, {1004, 1005, 1006, 1015}

_open: Counter[UUID] = Counter()
slots = FairSlots(MOST_OF_SERVER, "connections to kernels and terminals")


async def serve(uid: UUID | None, scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Serve one websocket; one that is refused is closed before it is accepted, which a browser sees as HTTP 403."""
    await receive()
    try:
        entry, opening = await admission.admit(uid, scope, is_use=False)
        if _open[opening.job.uid] >= MOST_SOCKETS:
            raise Refused(503, "too many")
        slots.check(opening.job.tenant_id)
    except (Refused, GpucloudError, DatabaseError, RedisError, OSError):
        await send({"type": "websocket.close", "code": POLICY})
        return
    _open[opening.job.uid] += 1
    try:
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(slots.taken(opening.job.tenant_id))
            jupyter = await _connect(opening, scope, stack)
            await send({"type": "websocket.accept", "subprotocol": jupyter.subprotocol})
            code, why = await _relay(Relay(entry, opening, scope, jupyter), receive, send)
            with contextlib.suppress(OSError, RuntimeError):
                reason = why.encode()[:120].decode(errors="ignore")
                await send({"type": "websocket.close", "code": code, "reason": reason})
    except (Ended, httpcore.NetworkError, WebSocketException, OSError, TimeoutError, ValueError) as error:
        logger.info("a websocket of notebook %s could not be opened: %s", opening.job.uid, error)
        await send({"type": "websocket.close", "code": POLICY})
    finally:
        _open[opening.job.uid] -= 1
        if not _open[opening.job.uid]:
            del _open[opening.job.uid]


async def _connect(opening: Opening, scope: dict[str, Any], stack: contextlib.AsyncExitStack) -> ClientConnection:
    """Return a websocket to Jupyter, through a tunnel, until the stack ends. Raises Ended, and as websockets does."""
    stream = await Stream.open(opening)
    stack.push_async_callback(stream.aclose)
    ours, theirs = socket.socketpair()
    pump = asyncio.ensure_future(_pump(stream, theirs))
    stack.push_async_callback(_cancel, pump)
    target = (scope.get("raw_path") or quote(scope["path"]).encode()).decode("latin-1")
    query = scope["query_string"].decode("latin-1")
    headers = policy.to_jupyter(scope["headers"], opening.run_uid)
    return await stack.enter_async_context(
        connect(
            f"ws://localhost{target}" + (f"?{query}" if query else ""),
            sock=ours,
            subprotocols=scope["subprotocols"] or None,
            additional_headers=[
                (name.decode("latin-1"), value.decode("latin-1"))
                for name, value in headers
                if name in (b"authorization", b"cookie", b"user-agent")
            ],
            user_agent_header=None,
            compression=None,
            max_size=MOST_MESSAGE_BYTES,
            # Of frames that wait here.
            max_queue=1,
            ping_interval=None,
            open_timeout=OPEN_SECONDS,
            close_timeout=2,
            proxy=None,
        )
    )


async def _pump(stream: Stream, end: socket.socket) -> None:
    """Carry bytes between the tunnel and the socket of the websocket's client, as fast as both take them."""
    reader, writer = await asyncio.open_connection(sock=end, limit=CHUNK_BYTES)

    async def carry_in() -> None:
        while data := await stream.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()

    async def carry_out() -> None:
        while data := await reader.read(CHUNK_BYTES):
            await stream.write(data)

    tasks = [asyncio.ensure_future(carry_in()), asyncio.ensure_future(carry_out())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            await _cancel(task)
        writer.close()


async def _cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class Relay:
    """Both sides of an open websocket, and whose it is."""

    def __init__(self, entry: Entry, opening: Opening, scope: dict[str, Any], jupyter: ClientConnection) -> None:
        self._entry, self._opening, self._scope, self._jupyter = entry, opening, scope, jupyter
        self._is_used = False

    async def carry_in(self, receive: Receive) -> None:
        """Carry the browser's messages; the next is not read before Jupyter has taken the last."""
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                raise Closed(GOING_AWAY, "")
            self._is_used = True
            text = message.get("text")
            await self._jupyter.send(message.get("bytes") or b"" if text is None else text)

    async def carry_out(self, send: Send) -> None:
        """Carry Jupyter's messages, likewise."""
        async for message in self._jupyter:
            async with asyncio.timeout(READS_WITHIN_SECONDS):
                if isinstance(message, str):
                    await send({"type": "websocket.send", "text": message})
                else:
                    await send({"type": "websocket.send", "bytes": message})
        raise Closed(self._jupyter.close_code or GOING_AWAY, self._jupyter.close_reason or "")

    async def watch(self) -> None:
        """End with the person's rights, their session, and the run. Raises Closed."""
        try:
            await admission.watch(self._entry, self._opening, self._scope, self._take_used)
        except JobDoesNotRun as error:
            raise Closed(GOING_AWAY, error.detail) from error
        except GpucloudError as error:
            raise Closed(POLICY, error.detail) from error

    def _take_used(self) -> bool:
        is_used, self._is_used = self._is_used, False
        return is_used


class Closed(Exception):
    """End of a websocket, with code and reason."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code, self.why = code, why


async def _relay(relay: Relay, receive: Receive, send: Send) -> tuple[int, str]:
    """Carry messages both ways until one side is over; return the code and the reason for the browser."""
    coroutines = (relay.carry_in(receive), relay.carry_out(send), relay.watch())
    tasks = [asyncio.ensure_future(one) for one in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    found = next(one for task, one in zip(tasks, ends, strict=True) if task in done)
    if isinstance(found, Closed):
        return (found.code if found.code not in NOT_TO_SEND else GOING_AWAY), found.why
    if isinstance(found, ConnectionClosed):
        if found.sent is not None and found.sent.code == TOO_BIG:
            return TOO_BIG, f"A message of the notebook has more than {MOST_MESSAGE_BYTES >> 20} MiB."
        return GOING_AWAY, "The connection to the notebook was lost."
    if isinstance(found, OSError | TimeoutError):
        return GOING_AWAY, "The connection was lost."
    assert isinstance(found, BaseException)
    raise found
