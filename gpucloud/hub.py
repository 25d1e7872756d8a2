"""Hints from one process to others: who has joined a group is called with what is said to it.

Redis' publish and subscribe, and nothing kept: a message reaches those who have joined when it is said, and each hint
has its repair where it is used. An event loop has one subscription, however many of its sockets have joined: a message
comes to a process once, and there is nothing in Redis that it could forget. Who has joined in the loop that says it is
called at once, whatever Redis does.
`docs/decisions/0032-the-hub.md` says why this is not a channel layer.
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

# A Redis that takes connections and answers nothing must not hold whoever has committed already.
ANSWER_SECONDS = 2.0
# Until the subscription is made anew. With what is sent again by itself, a node is in step within ten seconds.
AGAIN_SECONDS = 0.5
# A connection that was cut without a word (a firewall that forgot it, a host that is gone) is found out by asking.
QUIET_SECONDS = 3.0
# A subscription without groups would end.
NOBODY = "nobody"

Message = dict[str, Any]
Hear = Callable[[Message], None]

# With the name of the hub that says it and has called its own already; empty: nobody's own.
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[str, Message]).decode


def say(messages: Iterable[tuple[str, Message]]) -> None:
    """From a command, a task or a thread: each group its messages, in their order. Raises RedisError, OSError."""
    with _redis().pipeline(transaction=False) as pipe:
        for group, message in messages:
            pipe.publish(_channel(group), _encode(("", message)))
        pipe.execute()


class Hub:
    """One event loop's."""

    def __init__(self) -> None:
        self.name = uuid.uuid4().hex
        # Reading waits for as long as nothing is said; whoever writes says how long it waits.
        self.redis = redis.asyncio.Redis.from_url(
            settings.REDIS_URL,
            client_name=f"hub-{self.name}",
            socket_connect_timeout=ANSWER_SECONDS,
            socket_timeout=None,
            max_connections=4096,
            retry=AsyncRetry(NoBackoff(), 0),
        )
        self._joined: dict[str, list[Hear]] = {}
        # Set while Redis has said that it sends us this group's.
        self._confirmed: dict[str, asyncio.Event] = {}
        self._subscription: PubSub | None = None
        self._writing = asyncio.Lock()
        # Since the last subscription broke: nobody waits for a word of a Redis that is known to be away.
        self._is_away = False
        self._hearing: asyncio.Task[None] | None = None

    async def join(self, group: str, hear: Hear) -> None:
        """Call `hear` in this loop with what is said to the group from now on; it must not raise.

        While Redis is away this returns at once, or after a moment, and the group is joined when Redis is back.
        """
        confirmed = self._confirmed.setdefault(group, asyncio.Event())
        self._joined.setdefault(group, []).append(hear)
        if self._hearing is None:
            self._hearing = asyncio.ensure_future(self._hear())
        if not confirmed.is_set() and self._subscription is not None:
            await self._subscribe([group])
        if not confirmed.is_set() and not self._is_away:
            with suppress(TimeoutError):
                await asyncio.wait_for(confirmed.wait(), ANSWER_SECONDS)

    async def leave(self, group: str, hear: Hear) -> None:
        """What was joined."""
        hearing = self._joined.get(group, [])
        if hear in hearing:
            hearing.remove(hear)
        if not hearing and self._joined.pop(group, None) is not None:
            self._confirmed.pop(group, None)
            async with self._writing:
                if self._subscription is not None and group not in self._joined:
                    with suppress(RedisError, OSError):
                        await self._subscription.unsubscribe(_channel(group))

    async def say(self, messages: Iterable[tuple[str, Message]]) -> None:
        """Each group its messages, in their order: those in this loop now, others by Redis.

        Raises RedisError, OSError, TimeoutError where others may not have heard.
        """
        async with asyncio.timeout(ANSWER_SECONDS):
            pipe = self.redis.pipeline(transaction=False)
            for group, message in messages:
                # Before anybody here has it, who may add to it what is this process's own.
                pipe.publish(_channel(group), _encode((self.name, message)))
                self.tell(group, message)
            await pipe.execute()

    def tell(self, group: str, message: Message) -> None:
        """Those only who have joined in this loop: Redis is not asked."""
        for hear in tuple(self._joined.get(group, ())):
            try:
                hear(message)
            except Exception:
                # Said by another release of this product, perhaps: the others must not go unheard because of it.
                logger.exception("a hint to %s was not understood", group)

    async def close(self) -> None:
        """Leave everything."""
        if self._hearing is not None:
            self._hearing.cancel()
            with suppress(asyncio.CancelledError):
                await self._hearing
            self._hearing = None
        self._joined.clear()
        self._confirmed.clear()
        await self.redis.aclose()

    async def _hear(self) -> None:
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
        is_asked = False
        while subscription.subscribed:
            message = await subscription.get_message(timeout=QUIET_SECONDS)
            if message is not None:
                is_asked = False
                self._take(message)
            elif is_asked:
                raise RedisConnectionError(f"it has said nothing for {2 * QUIET_SECONDS:.0f} s, though it was asked")
            else:
                is_asked = True
                async with self._writing:
                    await subscription.ping()

    async def _subscribe(self, groups: Iterable[str]) -> None:
        async with self._writing:
            if self._subscription is not None:
                # A connection that broke is noticed, and made anew, by who reads from it.
                with suppress(RedisError, OSError):
                    await self._subscription.subscribe(*map(_channel, groups))

    def _take(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "pong":
            return
        group = message["channel"].decode().removeprefix(_channel(""))
        if message["type"] == "message":
            try:
                name, said = _decode(message["data"])
            except msgspec.DecodeError:
                logger.exception("a hint to %s is none", group)
            else:
                if name != self.name:
                    self.tell(group, said)
        elif message["type"] == "subscribe":
            self._is_away = False
            if group in self._confirmed:
                self._confirmed[group].set()


_hubs: "WeakKeyDictionary[asyncio.AbstractEventLoop, Hub]" = WeakKeyDictionary()


def here() -> Hub:
    """This event loop's."""
    loop = asyncio.get_running_loop()
    if loop not in _hubs:
        _hubs[loop] = Hub()
    return _hubs[loop]


def _channel(group: str) -> str:
    return f"{settings.REDIS_PREFIX}:hub:{group}"


@cache
def _redis() -> redis.Redis:
    return redis.Redis.from_url(
        settings.REDIS_URL,
        socket_timeout=ANSWER_SECONDS,
        socket_connect_timeout=ANSWER_SECONDS,
        retry=Retry(NoBackoff(), 0),
    )
