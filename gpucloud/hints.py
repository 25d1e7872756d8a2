"""Hint bus: best-effort publish and subscribe between processes over Redis.

Callbacks that joined a group receive the messages published to it. Redis stores nothing: a message reaches only the
callbacks that are joined when it is published, so each use of a hint has its own repair for a lost one. Each event loop
has one subscription, however many of its sockets have joined: a message reaches a process once, and a lost subscription
loses no state in Redis. Callbacks in the publishing event loop run at once, even while Redis is down.
`docs/decisions/0032-the-hub.md` explains why this is not a channel layer.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import redis
import redis.asyncio
from django.conf import settings
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.retry import Retry

logger = logging.getLogger(__name__)

# A Redis that accepts connections and never answers must not block a caller that has already committed.
ANSWER_SECONDS = 2.0
# Delay before resubscribing. With the periodic resends, a node is in step within ten seconds.
AGAIN_SECONDS = 0.5
# A connection can break silently (a firewall dropped it, its host is gone): after this long without data, ping it.
QUIET_SECONDS = 3.0
# Keeps the subscription open while no group is joined: redis-py ends a subscription without channels.
NOBODY = "nobody"

Message = dict[str, Any]
Callback = Callable[[Message], None]

# A message is sent with the name of the bus that published it, which has already delivered it to its own callbacks.
# The name is empty for messages from outside of any event loop.
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[str, Message]).decode


def publish(messages: Iterable[tuple[str, Message]]) -> None:
    """Publish (group, message) pairs in order from a command, a task or a thread.

    Raises RedisError or OSError.
    """
    with _redis().pipeline(transaction=False) as pipe:
        for group, message in messages:
            pipe.publish(_channel(group), _encode(("", message)))
        pipe.execute()


class HintBus:
    """The publisher and subscriber of one event loop."""

    def __init__(self) -> None:
        self.name = uuid.uuid4().hex
        # Reads block until a message arrives; each write sets its own time limit.
        self.redis = redis.asyncio.Redis.from_url(
            settings.REDIS_URL,
            client_name=f"hints-{self.name}",
            socket_connect_timeout=ANSWER_SECONDS,
            socket_timeout=None,
            max_connections=4096,
            retry=AsyncRetry(NoBackoff(), 0),
        )
        self._joined: dict[str, list[Callback]] = {}
        # Set while Redis has confirmed the subscription to this group.
        self._confirmed: dict[str, asyncio.Event] = {}
        self._subscription: PubSub | None = None
        self._writing = asyncio.Lock()
        # True from a broken subscription until the next confirmation: joins do not wait for a Redis known to be down.
        self._is_away = False
        self._reader: asyncio.Task[None] | None = None

    async def join(self, group: str, callback: Callback) -> None:
        """Call `callback` in this loop with each message published to the group from now on; it must not raise.

        While Redis is down this returns at once, or after at most ANSWER_SECONDS; the group is subscribed when Redis
        is back.
        """
        confirmed = self._confirmed.setdefault(group, asyncio.Event())
        self._joined.setdefault(group, []).append(callback)
        if self._reader is None:
            self._reader = asyncio.ensure_future(self._keep_reading())
        if not confirmed.is_set() and self._subscription is not None:
            await self._subscribe([group])
        if not confirmed.is_set() and not self._is_away:
            with suppress(TimeoutError):
                await asyncio.wait_for(confirmed.wait(), ANSWER_SECONDS)

    async def leave(self, group: str, callback: Callback) -> None:
        """Remove a callback from a group, and unsubscribe when it was the group's last."""
        callbacks = self._joined.get(group, [])
        if callback in callbacks:
            callbacks.remove(callback)
        if not callbacks and self._joined.pop(group, None) is not None:
            self._confirmed.pop(group, None)
            async with self._writing:
                if self._subscription is not None and group not in self._joined:
                    with suppress(RedisError, OSError):
                        await self._subscription.unsubscribe(_channel(group))

    async def publish(self, messages: Iterable[tuple[str, Message]]) -> None:
        """Publish (group, message) pairs in order: to this loop's callbacks at once, to other processes over Redis.

        Raises RedisError, OSError or TimeoutError if other processes may not have received them.
        """
        async with asyncio.timeout(ANSWER_SECONDS):
            pipe = self.redis.pipeline(transaction=False)
            for group, message in messages:
                # Encode before local delivery: a local callback may add process-local data to the message.
                pipe.publish(_channel(group), _encode((self.name, message)))
                self.deliver(group, message)
            await pipe.execute()

    def deliver(self, group: str, message: Message) -> None:
        """Call this loop's callbacks of the group; nothing is sent to Redis."""
        for callback in tuple(self._joined.get(group, ())):
            try:
                callback(message)
            except Exception:
                # Perhaps published by another release: one failing callback must not keep others from the message.
                logger.exception("a hint to %s was not understood", group)

    async def close(self) -> None:
        """Leave all groups and close the connections."""
        if self._reader is not None:
            self._reader.cancel()
            with suppress(asyncio.CancelledError):
                await self._reader
            self._reader = None
        self._joined.clear()
        self._confirmed.clear()
        await self.redis.aclose()

    async def _keep_reading(self) -> None:
        while True:
            try:
                async with self.redis.pubsub() as self._subscription:
                    await self._subscribe([NOBODY, *self._joined])
                    await self._read(self._subscription)
            except (RedisError, OSError) as error:
                logger.warning("no hints from other processes until Redis is back: %s", error)
            finally:
                self._subscription, self._is_away = None, True
                for confirmed in self._confirmed.values():
                    confirmed.clear()
            await asyncio.sleep(AGAIN_SECONDS)

    async def _read(self, subscription: PubSub) -> None:
        is_pinged = False
        while subscription.subscribed:
            message = await subscription.get_message(timeout=QUIET_SECONDS)
            if message is not None:
                is_pinged = False
                self._receive(message)
            elif is_pinged:
                raise RedisConnectionError(f"no data for {2 * QUIET_SECONDS:.0f} s, despite a ping")
            else:
                is_pinged = True
                async with self._writing:
                    await subscription.ping()

    async def _subscribe(self, groups: Iterable[str]) -> None:
        async with self._writing:
            if self._subscription is not None:
                # The reader notices a broken connection and makes a new one.
                with suppress(RedisError, OSError):
                    await self._subscription.subscribe(*map(_channel, groups))

    def _receive(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "pong":
            return
        group = message["channel"].decode().removeprefix(_channel(""))
        if message["type"] == "message":
            try:
                publisher, hint = _decode(message["data"])
            except msgspec.DecodeError:
                logger.exception("a hint to %s could not be decoded", group)
            else:
                if publisher != self.name:
                    self.deliver(group, hint)
        elif message["type"] == "subscribe":
            self._is_away = False
            if group in self._confirmed:
                self._confirmed[group].set()


_buses: "WeakKeyDictionary[asyncio.AbstractEventLoop, HintBus]" = WeakKeyDictionary()


def bus() -> HintBus:
    """Return the bus of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _buses:
        _buses[loop] = HintBus()
    return _buses[loop]


def channel_of(group: str) -> str:
    """Return the name in Redis of what belongs to a group."""
    return _channel(group)


def _channel(group: str) -> str:
    # "hub" is the wire format: processes of two releases share these channels during a rolling upgrade.
    return f"{settings.REDIS_PREFIX}:hub:{group}"


@cache
def _redis() -> redis.Redis:
    return redis.Redis.from_url(
        settings.REDIS_URL,
        socket_timeout=ANSWER_SECONDS,
        socket_connect_timeout=ANSWER_SECONDS,
        retry=Retry(NoBackoff(), 0),
    )
