"""Websocket consumer of a node's connection: decode a frame, call one service, answer."""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from typing import Any

import msgspec
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.db import Error as AnyDatabaseError
from redis.exceptions import RedisError

from agent import wire
from apps.nodes.gateway import desired_states, intake, reconnect_throttle
from apps.nodes.gateway.incoming import Incoming
from apps.nodes.gateway.outgoing import Outgoing
from apps.nodes.models import Node
from apps.nodes.models.node import hint_group
from apps.nodes.providers import node_claims
from apps.nodes.services import nodes
from apps.nodes.services.telemetry import plausible, storing
from apps.nodes.services.telemetry.storing import Source
from gpucloud import hints
from gpucloud.errors import GpucloudError

logger = logging.getLogger(__name__)

# A replaced key ends its connections within a minute.
ASK_AGAIN_SECONDS = 60.0


class AgentConsumer(AsyncWebsocketConsumer):
    """Connection of one agent. A newer connection of the same node replaces it."""

    node: Node | None = None
    source: Source | None = None
    # True once its hello was stored: other frames may follow.
    welcomed = False
    # True if its agent can dial tunnels.
    dials = False
    # True if clients of remote shares can reach it.
    takes_remote = False
    credential = ""
    checked = 0.0

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        # Callers compare these, and each access to a bound method creates a new one.
        self._told, self._hear, self._want = self._acknowledge, self._handle_hint, self._send_desired
        # Identifies this connection in the hints that it sends itself.
        self.name = uuid.uuid4().hex
        self.outgoing = Outgoing()
        self.incoming: Incoming[wire.FromAgent | Refused] = Incoming()

    async def __call__(self, scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        """Run one task each for reading, handling and writing while the connection lasts.

        Channels' own loop creates two tasks for each message and checks old database connections in a thread: at a
        frame a second from each node that is a third of the process. Here every user of a database connection checks it
        itself.
        """
        self.scope, self.base_send = scope, send
        reading = asyncio.ensure_future(self._read(receive))
        # Frames that were read before the agent left are handled: it will not send them again.
        both = [asyncio.ensure_future(self._handle_all()), asyncio.ensure_future(self.outgoing.write(send))]
        try:
            done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for task in (*done, *([reading] if reading.done() else [])):
                task.result()
        except TimeoutError:
            logger.warning("node %s does not read: disconnected", self.node and self.node.name)
        except OSError:
            pass  # the agent has just disconnected
        finally:
            for task in (reading, *both):
                task.cancel()
            await asyncio.gather(reading, *both, return_exceptions=True)
            await self.disconnect(1006)

    async def _read(self, receive: Callable[[], Any]) -> None:
        try:
            while True:
                message = await receive()
                if message["type"] == "websocket.receive":
                    await self.receive(text_data=message.get("text"), bytes_data=message.get("bytes"))
                elif message["type"] == "websocket.connect":
                    await self.connect()
                else:
                    break
        finally:
            self.incoming.close()

    async def connect(self) -> None:
        """Accept the connection and authenticate: a refusal then has a close code that the agent explains."""
        await self.accept()
        credential = _bearer(self.scope["headers"])
        self.credential, self.checked = credential, time.monotonic()
        try:
            self.node = await database_sync_to_async(nodes.authenticate)(credential=credential)
        except AnyDatabaseError as error:
            logger.warning("an agent could not be authenticated: %s", error)
            self.outgoing.end(wire.CLOSE_BUSY, "the database does not answer: come again")
            return
        if self.node is None:
            self.outgoing.end(wire.CLOSE_UNAUTHORISED, "unknown or revoked credential")

    async def _is_revoked(self) -> bool:
        """Return True if the node has another key now; queries the database every ASK_AGAIN_SECONDS."""
        if time.monotonic() - self.checked < ASK_AGAIN_SECONDS:
            return False
        self.checked = time.monotonic()
        return await database_sync_to_async(nodes.authenticate)(credential=self.credential) is None

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Queue one frame, to be handled after those before it."""
        if self.node is None or self.outgoing.is_ended:
            return
        try:
            frame: wire.FromAgent | Refused = _decode(text_data)
        except Refused as refusal:
            frame = refusal
        await self.incoming.put(frame)

    async def _handle_all(self) -> None:
        while (frame := await self.incoming.take()) is not None:
            if self.node is None or self.outgoing.is_ended:
                continue
            if not isinstance(frame, Refused) and not self.welcomed and not isinstance(frame, wire.Hello):
                frame = Refused(wire.CLOSE_MALFORMED, "the first frame must be a hello")
            if isinstance(frame, Refused):
                logger.warning("node %s sent an invalid frame: %s", self.node.name, frame.why)
                self.outgoing.end(frame.code, _brief(frame.why))
            else:
                await self._handle(self.node, frame)

    async def _handle(self, node: Node, frame: wire.FromAgent) -> None:
        try:
            if await self._is_revoked():
                raise nodes.CredentialRevoked("This node has another key now.")
            match frame:
                case wire.Hello():
                    await self._hello(node, frame)
                case wire.Usage():
                    self._usage(frame)
                case wire.Output():
                    await self._output(node, frame)
                case _:
                    await database_sync_to_async(_store)(node, frame)
        except nodes.CredentialRevoked as error:
            self.outgoing.end(wire.CLOSE_UNAUTHORISED, _brief(error.detail))
        except GpucloudError as error:
            logger.warning("node %s: %s", node.name, error.detail)
            self.outgoing.end(wire.CLOSE_MALFORMED, _brief(error.detail))
        except AnyDatabaseError as error:
            # Nothing was stored, so nothing is acknowledged; the agent reconnects and sends it again.
            logger.warning("node %s: the database refused a frame: %s", node.name, error)
            self.outgoing.end(wire.CLOSE_BUSY, "the database did not take this frame")

    async def _hello(self, node: Node, hello: wire.Hello) -> None:
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(reconnect_throttle.of_this_loop().slot())
            except reconnect_throttle.TooMany as error:
                self.outgoing.end(wire.CLOSE_BUSY, wire.Busy.reason_of("too many agents came at once", error.seconds))
                return
            await self._greet(node, hello)

    async def _greet(self, node: Node, hello: wire.Hello) -> None:
        """Store the hello and prepare the welcome.

        Nothing is sent while the slot is held, so an agent that does not read delays no other.
        """
        self.node = node = await database_sync_to_async(nodes.take_hello)(node=node, hello=hello)
        group = hint_group(node.pk)
        await self._supersede(node, group)
        if not self.welcomed:
            # Once, even for a second hello: the group is left once.
            await hints.bus().join(group, self._hear)
        self.source = await database_sync_to_async(storing.source_of)(node)
        self.outgoing.welcome(node_uid=str(node.uid), node_name=node.name)
        self.welcomed, self.dials = True, hello.tunnels is True
        self.takes_remote = hello.remote is not msgspec.UNSET
        # Join before reading: a change in between is read now, a later one sends a hint.
        desired_states.of_this_loop().ask(node.pk, self._want, self._end_unread)
        logger.info("node %s connected: %d GPUs, agent %s", node.name, len(hello.gpus), hello.agent_version)

    async def _supersede(self, node: Node, group: str) -> None:
        """Close an older connection of the node, here or in another process."""
        try:
            await hints.bus().publish([(group, {"type": "node.superseded", "by": self.name})])
        except (RedisError, OSError, TimeoutError) as error:
            logger.warning("other servers could not be informed that node %s connected here: %s", node.name, error)

    def _usage(self, frame: wire.Usage) -> None:
        assert self.source is not None
        try:
            intake.of_this_loop().put(self.source, plausible.drop_implausible(self.source, frame), self._told)
        except intake.NoRoom as error:
            logger.warning("node %s: a frame was not accepted: %s", self.source.node_name, error)
            self.outgoing.end(wire.CLOSE_BUSY, str(error))

    async def _output(self, node: Node, frame: wire.Output) -> None:
        """Store a piece of a run's output and confirm it; one of an unknown run is dropped."""
        length = await database_sync_to_async(node_claims.get().output)(node, frame)
        if length is not None:
            self.outgoing.stored(frame.uid, length)

    def _acknowledge(self, seq: int | None) -> None:
        """Acknowledge every frame up to this number, or end the connection if one was not stored."""
        if seq is None:
            self.outgoing.end(wire.CLOSE_BUSY, "the database did not take this frame")
        else:
            self.outgoing.ack(seq)

    def _handle_hint(self, message: hints.Message) -> None:
        """Handle a hint from workers, other servers or another connection of the node."""
        match message:
            case {"type": "node.changed"}:
                if self.welcomed and self.node is not None:
                    desired_states.of_this_loop().ask(self.node.pk, self._want, self._end_unread)
            case {"type": "node.superseded", "by": by}:
                if by != self.name:
                    self.outgoing.end(wire.CLOSE_SUPERSEDED, "another connection of this node took over")
            case {"type": "node.tunnel", "tunnel": uid, "run": run, "ticket": ticket}:
                if self.welcomed and self.dials:
                    stream = message.get("stream") is True
                    self.outgoing.tunnel(wire.Tunnel(uid=uid, run_uid=run, ticket=ticket, stream=stream))
            case {"type": "node.remote", **facts}:
                if self.welcomed and self.takes_remote:
                    self.outgoing.remote(msgspec.convert(facts, wire.RemoteTicket))
            case {"type": "node.forgotten"}:
                # Its agent stays refused until it is enrolled again.
                self.outgoing.end(wire.CLOSE_UNAUTHORISED, "this node was forgotten")
            case _:
                # From another release of this product: later hints still arrive.
                logger.warning("unknown hint: %s", message.get("type"))

    def _send_desired(self, text: str) -> None:
        """Send the node's present desired state."""
        self.outgoing.desired(text)
        if self.source is not None:
            # The node's assignments may be about to change.
            self.source.carried = None

    def _end_unread(self) -> None:
        """End the connection so that the agent reconnects: its desired state could not be read.

        Nothing else would read it again if the previous state was in force already.
        """
        self.outgoing.end(wire.CLOSE_BUSY, "what this node is to be could not be read: come again")

    async def disconnect(self, code: int) -> None:
        """Leave the group; the desired state stays in the database."""
        if self.node is not None:
            await hints.bus().leave(hint_group(self.node.pk), self._hear)


class Refused(Exception):
    """A frame that ends the connection, with its close code."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code, self.why = code, why


def _brief(why: str) -> str:
    """Cut the reason to a close frame's room, 123 bytes."""
    return why.encode()[:120].decode(errors="ignore")


def _store(node: Node, frame: wire.Observed | wire.Event | wire.Conditions | wire.Health) -> None:
    match frame:
        case wire.Observed():
            node_claims.get().observed(node, frame)
        case wire.Event():
            node_claims.get().event(node, frame)
        case wire.Conditions():
            node_claims.get().conditions(node, frame)
        case wire.Health():
            node_claims.get().health(node, frame)


def _decode(text: str | None) -> wire.FromAgent:
    if text is None:
        raise Refused(wire.CLOSE_MALFORMED, "binary frames are not part of the protocol")
    # A character has four bytes at most, so only long texts are encoded for the check.
    if len(text) > wire.MAX_FRAME_BYTES // 4 and len(text.encode()) > wire.MAX_FRAME_BYTES:
        raise Refused(wire.CLOSE_TOO_LARGE, "the frame is larger than 1 MiB")
    if "\\u0000" in text:
        raise Refused(wire.CLOSE_MALFORMED, "the frame holds a NUL character, which nothing can store")
    try:
        return wire.decode_from_agent(text)
    except wire.MalformedFrame as error:
        raise Refused(wire.CLOSE_MALFORMED, str(error)) from error


def _bearer(headers: Iterable[tuple[bytes, bytes]]) -> str:
    for name, value in headers:
        if name == b"authorization":
            return value.decode("latin-1").removeprefix("Bearer ").strip()
    return ""
