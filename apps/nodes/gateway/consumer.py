"""A node's connection: decode, call one service, answer. Nothing malformed gets past the decoder."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from channels.layers import get_channel_layer
from django.db import DatabaseError
from django.utils import timezone
from redis.exceptions import RedisError

from agent import wire
from apps.nodes.gateway import intake, registry
from apps.nodes.models import Node
from apps.nodes.services import nodes
from apps.nodes.services.telemetry import storing
from apps.nodes.services.telemetry.storing import Source
from gpucloud.errors import GpucloudError

logger = logging.getLogger(__name__)

# Half of the ten seconds in which a node is to be in step again; the repair of what is unobserved takes the other half.
JOIN_AGAIN_SECONDS = 4.0


class AgentConsumer(AsyncWebsocketConsumer):
    """One agent. The connection is taken over by a newer one of the same node."""

    node: Node | None = None
    welcomed = False
    source: Source | None = None
    # Closed, by either side: nothing is acknowledged any more.
    ended = False

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        # Compared by the intake, and a bound method is made anew each time it is asked for.
        self._told = self._stored
        self._listening: asyncio.Task[None] | None = None
        self._joined_at = time.monotonic()

    async def __call__(self, scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        """Channels' own loop makes two tasks anew for each message, and has a thread look after old database
        connections: at a frame a second of each node that is a third of the process. Here what the agent sends is read
        by one loop and what comes over the channel layer by another; whoever uses a connection looks after it.
        """
        self.scope, self.base_send = scope, send
        layer = get_channel_layer()
        assert layer is not None
        self.channel_layer = layer
        self.channel_name = await self.channel_layer.new_channel()
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
            if self._listening is not None:
                self._listening.cancel()
            await self.disconnect(1006)

    async def _listen(self) -> None:
        """What workers and other connections of the node say. Without the channel layer the agent must come again."""
        try:
            while True:
                message = await self.channel_layer.receive(self.channel_name)
                await getattr(self, message["type"].replace(".", "_"))(message)
        except (RedisError, OSError) as error:
            logger.warning("no pushes for an agent: %s", error)
            await self.close(wire.CLOSE_BUSY, "the channel layer is away")

    async def close(self, code: int | None = None, reason: str | None = None) -> None:
        """Nothing is said or stored after that. Once: two reasons may come together."""
        if not self.ended:
            self.ended = True
            await super().close(code, reason)

    async def connect(self) -> None:
        """Accept first, so that a refusal can carry a close code that the agent can explain."""
        await self.accept()
        credential = _bearer(self.scope["headers"])
        self.node = await database_sync_to_async(nodes.authenticate)(credential=credential)
        if self.node is None:
            await self.close(wire.CLOSE_UNAUTHORISED, "unknown or revoked credential")

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """One frame."""
        if self.node is None or self.ended:
            return
        try:
            frame = _decode(text_data)
            if not self.welcomed and not isinstance(frame, wire.Hello):
                raise Refused(wire.CLOSE_MALFORMED, "the first frame must be a hello")
        except Refused as refusal:
            logger.warning("node %s sent a frame that is refused: %s", self.node.name, refusal.why)
            await self.close(refusal.code, _brief(refusal.why))
            return
        await self._handle(self.node, frame)

    async def _handle(self, node: Node, frame: wire.FromAgent) -> None:
        try:
            match frame:
                case wire.Hello():
                    await self._hello(node, frame)
                case wire.Observed():
                    await database_sync_to_async(registry.claims().observed)(node, frame)
                case wire.Usage():
                    await self._usage(frame)
                case wire.Event():
                    await database_sync_to_async(registry.claims().event)(node, frame)
                case wire.Conditions():
                    await database_sync_to_async(registry.claims().conditions)(node, frame)
                case wire.Pong():
                    await database_sync_to_async(_seen)(node)
        except nodes.CredentialRevoked as error:
            await self.close(wire.CLOSE_UNAUTHORISED, _brief(error.detail))
        except GpucloudError as error:
            logger.warning("node %s: %s", node.name, error.detail)
            await self.close(wire.CLOSE_MALFORMED, _brief(error.detail))
        except DatabaseError as error:
            # Nothing was stored, so nothing is acknowledged; the agent comes back and says it again.
            logger.warning("node %s: the database refused a frame: %s", node.name, error)
            await self.close(wire.CLOSE_BUSY, "the database did not take this frame")

    async def _hello(self, node: Node, hello: wire.Hello) -> None:
        self.node = node = await database_sync_to_async(nodes.take_hello)(node=node, hello=hello)
        group = registry.group(node.uid)
        await self.channel_layer.group_send(group, {"type": "node.superseded", "by": self.channel_name})
        await self.channel_layer.group_add(group, self.channel_name)
        now = timezone.now().timestamp()
        await self.send(wire.encode(wire.Welcome(node_uid=str(node.uid), node_name=node.name, server_time=now)))
        # Joined before it is read: a push between the two is sent twice rather than never.
        desired = await database_sync_to_async(registry.claims().desired)(node)
        await self.send(wire.encode(desired))
        self.source = await database_sync_to_async(storing.source_of)(node)
        self.welcomed = True
        if self._listening is None:
            # Only now: a push from between is kept for us, and is newer than what was just sent.
            self._listening = asyncio.ensure_future(self._listen())
        logger.info("node %s connected: %d GPUs, agent %s", node.name, len(hello.gpus), hello.agent_version)

    async def _usage(self, frame: wire.Usage) -> None:
        assert self.source is not None
        await self._join_again()
        if not intake.here().put(self.source, frame, self._told):
            await self.close(wire.CLOSE_BUSY, "too much waits to be stored")

    async def _join_again(self) -> None:
        """Redis may have forgotten the group while the connection stood: without us in it, no push would ever come."""
        now = time.monotonic()
        if self.node is not None and now - self._joined_at >= JOIN_AGAIN_SECONDS:
            self._joined_at = now
            with contextlib.suppress(RedisError, OSError):
                # Where it is away, the listener hears of it and closes.
                await self.channel_layer.group_add(registry.group(self.node.uid), self.channel_name)

    async def _stored(self, seq: int | None) -> None:
        """Every frame up to this one is stored, or one is not."""
        if self.ended:
            return
        if seq is None:
            await self.close(wire.CLOSE_BUSY, "the database did not take this frame")
        else:
            await self.send(wire.encode(wire.Ack(seq=seq)))

    async def node_desired(self, message: dict[str, Any]) -> None:
        """A push from a worker."""
        if self.welcomed and not self.ended:
            await self.send(message["text"])
            if self.source is not None:
                # What the node carries may be about to change.
                self.source.carried = None

    async def node_superseded(self, message: dict[str, Any]) -> None:
        """A newer connection of this node."""
        if message["by"] != self.channel_name:
            await self.close(wire.CLOSE_SUPERSEDED, "another connection of this node took over")

    async def node_forgotten(self, message: dict[str, Any]) -> None:
        """An operator forgot the node: its agent is shut out until it is enrolled again."""
        await self.close(wire.CLOSE_UNAUTHORISED, "this node was forgotten")

    async def disconnect(self, code: int) -> None:
        """Leave the group; what is wanted stays in the database."""
        self.ended = True
        if self.node is not None:
            await self.channel_layer.group_discard(registry.group(self.node.uid), self.channel_name)


class Refused(Exception):
    """A frame that ends the connection, with the close code that says so."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code, self.why = code, why


def _brief(why: str) -> str:
    """A close frame has room for 123 bytes."""
    return why.encode()[:120].decode(errors="ignore")


def _decode(text: str | None) -> wire.FromAgent:
    if text is None:
        raise Refused(wire.CLOSE_MALFORMED, "binary frames are not part of the protocol")
    if len(text.encode()) > wire.MAX_FRAME_BYTES:
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


def _seen(node: Node) -> None:
    Node.objects.filter(pk=node.pk).update(last_seen_at=timezone.now())
