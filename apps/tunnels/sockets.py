"""The two websockets of a tunnel: a client's, /ws/jobs/UID/terminal/, and its node's, /ws/tunnel/.

A client has a token, or is a page of this server with its session: then its origin must be the server's own, since a
browser sends the cookie with websockets of other sites' pages, too. A page reads all that comes, however slowly it
draws; with `?shown=1` it says how many messages it has drawn, `{"shown": 1}`, and gets no more than a window ahead.
"""

import asyncio
import contextlib
import json
import logging
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from channels.db import database_sync_to_async
from django.db import DatabaseError
from redis.exceptions import RedisError

from apps.nodes.models.node import hint_group
from apps.nodes.services import nodes
from apps.quotas.authentication import source_of
from apps.tunnels import rights
from apps.tunnels.ends import ALIVE_SECONDS, ClientEnd, End, Ended, Message, NodeEnd
from apps.tunnels.rights import Opening
from gpucloud import hints
from gpucloud.errors import Denied, GpucloudError, Missing
from gpucloud.web.origins import is_same_origin, request_of

logger = logging.getLogger(__name__)

# RFC 6455 leaves 4000-4999 to applications: these are HTTP's with 4000 added.
CLOSE_DENIED, CLOSE_MISSING, CLOSE_CONFLICT, CLOSE_OVER = 4403, 4404, 4409, 1000
# A terminal in which nothing was typed or written for so long is closed.
IDLE_SECONDS = 8 * 3600.0
# A revoked right, or the end of the run, closes it within this time.
ASK_AGAIN_SECONDS = 10.0
# A connection that reads nothing for so long is not a slow one.
READS_WITHIN_SECONDS = 3600.0

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


async def serve_client(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Serve a client's terminal."""
    await receive()
    token = _header(scope, b"authorization").removeprefix("Bearer ").strip()
    if not token and not is_same_origin(scope):
        # Before it is accepted: the browser tells a foreign page nothing.
        await _close(send, CLOSE_DENIED, "")
        return
    await send({"type": "websocket.accept"})
    source = source_of(request_of(scope))

    def authorize() -> Opening:
        found = rights.find_token_principal(token, source) if token else rights.find_session_principal(scope, source)
        return rights.authorize(found, scope["url_route"]["kwargs"]["uid"])

    try:
        opening = await database_sync_to_async(authorize)()
        end = ClientEnd(opening.node.pk)
        await rights.count(opening.principal, end.uid)
    except GpucloudError as error:
        await _close(send, _code_of(error), error.detail)
        return
    except (DatabaseError, RedisError, OSError) as error:
        logger.warning("a terminal could not be opened: %r", error)
        await _close(send, CLOSE_CONFLICT, "the server cannot open a terminal now: try again")
        return
    why = "the client closed it"
    await end.open()
    try:
        if b"shown=1" in scope["query_string"].split(b"&"):
            end.drawing = deque()
        why = await _open_and_relay(opening, end, authorize, receive, send)
    finally:
        await end.close(why)
        await rights.discount(opening.principal, end.uid)


async def _open_and_relay(
    opening: Opening, end: ClientEnd, authorize: Callable[[], Opening], receive: Receive, send: Send
) -> str:
    hint = {"type": "node.tunnel", "tunnel": end.uid, "run": opening.run_uid, "ticket": end.ticket}
    try:
        await hints.bus().publish([(hint_group(opening.node.pk), hint)])
        await end.await_node()
    except (Ended, RedisError, OSError, TimeoutError) as error:
        why = str(error) or "the node could not be asked"
        await _close(send, CLOSE_CONFLICT, why)
        return why
    await database_sync_to_async(rights.record_opened)(opening)
    begun, why = time.monotonic(), "the client's connection was lost"
    try:
        why = await _relay(end, receive, send, _watch(opening, end, authorize))
        return why
    finally:
        await database_sync_to_async(rights.record_closed)(opening, seconds=time.monotonic() - begun, why=why)


async def _watch(opening: Opening, end: ClientEnd, authorize: Callable[[], Opening]) -> None:
    """End the tunnel with the caller's rights, with the run, and when nothing moves. Raises Ended."""
    while True:
        await asyncio.sleep(ASK_AGAIN_SECONDS)
        if time.monotonic() - end.moved_at > IDLE_SECONDS:
            raise Ended("nothing was typed or written for hours")
        try:
            present = await database_sync_to_async(authorize)()
            await rights.count(opening.principal, end.uid)
        except GpucloudError as error:
            raise Ended(error.detail) from error
        except (DatabaseError, RedisError, OSError):
            continue  # nothing is known to have changed
        if present.run_uid != opening.run_uid:
            raise Ended("The run has ended.")


async def serve_node(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Serve the connection that a node's agent has dialled for one tunnel."""
    await receive()
    credential = _header(scope, b"authorization").removeprefix("Bearer ").strip()
    node = await database_sync_to_async(nodes.authenticate)(credential=credential)
    await send({"type": "websocket.accept"})
    tunnel = _header(scope, b"x-gpucloud-tunnel")
    if node is None or not _is_uid(tunnel):
        await _close(send, CLOSE_DENIED, "unknown or revoked credential, or no tunnel is named")
        return
    end, why = NodeEnd(tunnel), "the node closed it"
    await end.open()
    try:
        await end.dial(node_pk=node.pk, ticket=_header(scope, b"x-gpucloud-ticket"))
    except Ended as error:
        await end.close("")
        await _close(send, CLOSE_DENIED, str(error))
        return
    try:
        why = await _relay(end, receive, send, _watch_node(credential))
    finally:
        await end.close(why)


async def _watch_node(credential: str) -> None:
    while True:
        await asyncio.sleep(ASK_AGAIN_SECONDS)
        with contextlib.suppress(DatabaseError):
            if await database_sync_to_async(nodes.authenticate)(credential=credential) is None:
                raise Ended("the node has another key now")


async def _relay(end: End, receive: Receive, send: Send, watching: Coroutine[Any, Any, None]) -> str:
    """Carry messages both ways until one end is over; return why."""
    coroutines = (_carry_in(end, receive), _carry_out(end, send), end.keep_alive(), watching)
    tasks = [asyncio.ensure_future(one) for one in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    found = [one for task, one in zip(tasks, ends, strict=True) if task in done]
    for one in found:
        if isinstance(one, Exception) and not isinstance(one, Ended | OSError | TimeoutError):
            raise one
    why = str(found[0]) or "the connection was lost"
    await _close(send, CLOSE_OVER, why)
    return why


async def _carry_in(end: End, receive: Receive) -> None:
    """Carry what comes from the socket; the next message is not read before the last has found room."""
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            raise Ended(message.get("reason") or "the other side closed it")
        text = message.get("text")
        if text is not None and end.drawing is not None and (count := _count_shown(text)):
            await end.give_credit(sum(end.drawing.popleft() for _ in range(min(count, len(end.drawing)))))
            continue
        data = message.get("bytes") or b""
        await end.send(Message(data if text is None else text.encode(), text is not None))


async def _carry_out(end: End, send: Send) -> None:
    while True:
        message = await end.receive()
        async with asyncio.timeout(READS_WITHIN_SECONDS):
            if message.is_text:
                await send({"type": "websocket.send", "text": message.data.decode(errors="replace")})
            else:
                await send({"type": "websocket.send", "bytes": message.data})
        if end.drawing is None:
            await end.give_credit(message.cost)
        else:
            end.drawing.append(message.cost)


def _count_shown(text: str) -> int:
    """Return how many messages a page has drawn; 0 if the text says something else."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return 0
    count = said.get("shown") if isinstance(said, dict) else None
    return count if isinstance(count, int) and count > 0 else 0


async def _close(send: Send, code: int, why: str) -> None:
    """Close the socket, if it is open still; a close frame has room for 123 bytes."""
    with contextlib.suppress(OSError, RuntimeError, TimeoutError):
        async with asyncio.timeout(ALIVE_SECONDS):
            reason = why.encode()[:120].decode(errors="ignore")
            await send({"type": "websocket.close", "code": code, "reason": reason})


def _code_of(error: GpucloudError) -> int:
    if isinstance(error, Missing):
        return CLOSE_MISSING
    return CLOSE_DENIED if isinstance(error, Denied) else CLOSE_CONFLICT


def _header(scope: dict[str, Any], name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


def _is_uid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False
