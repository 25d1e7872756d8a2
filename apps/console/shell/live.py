"""The websocket /ws/live/ of open pages. Telemetry goes to charts; every other event only makes the page read again.

The page names one claim, one node, or `claims=all` in the query; the rights of its session to that are checked before
anything is sent.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.core.exceptions import ValidationError
from django.db import Error as AnyDatabaseError
from redis.exceptions import RedisError

from apps.nodes.models import Node
from apps.quotas import principals
from apps.quotas.authentication import find_session_user
from apps.quotas.services import accounts
from apps.scheduling import events, watching
from apps.scheduling.models import Claim
from gpucloud import hints

logger = logging.getLogger(__name__)

CLOSE_DENIED = 4403
# The message after which a page's rights are checked again.
CHECK = "live.check"
# The code of RFC 6455 for a failure: the page connects again.
CLOSE_FAILED = 1011
# A revoked right closes the connection within this time.
ASK_AGAIN_SECONDS = 60.0
# A page that does not read this many messages gets the newest only.
MOST_WAITING = 16


class LiveConsumer(AsyncWebsocketConsumer):
    """The connection of one open page."""

    watched: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()
    checked = 0.0
    hear: Callable[[hints.Message], None]
    busy: tuple[asyncio.Task[None], ...] = ()

    async def connect(self) -> None:
        """Join the groups that the session may watch; else close with 4403."""
        await self.accept()
        self.watched = await self._may_watch()
        if not self.watched:
            await self.close(CLOSE_DENIED, "not signed in, or not yours")
            return
        said: asyncio.Queue[hints.Message] = asyncio.Queue()

        def hear(message: hints.Message) -> None:
            # One time for all pages of this process, so that a fragment made for the first is new enough for all.
            message.setdefault("at", time.time())
            if said.qsize() >= MOST_WAITING:
                said.get_nowait()
            said.put_nowait(message)

        self.hear = hear
        # The group in which the end of the user's sessions is announced.
        assert self.scope["user"] is not None  # else nothing may be watched
        self.joined = (*self.watched, accounts.watch_group(self.scope["user"].pk))
        for group in self.joined:
            await hints.bus().join(group, hear)
        self.busy = (
            asyncio.ensure_future(watching.keep_watching(self.watched)),
            asyncio.ensure_future(self._tell(said)),
        )

    async def _may_watch(self) -> tuple[str, ...]:
        self.checked = time.monotonic()
        query = {name: values[0] for name, values in parse_qs(self.scope["query_string"].decode("latin-1")).items()}
        if any("\0" in value for value in query.values()):
            return ()  # no name has a NUL, and the database takes no such text
        return await database_sync_to_async(_groups)(self.scope.get("session"), self.scope.get("user"), query)

    async def disconnect(self, code: int) -> None:
        """Leave the groups."""
        for task in self.busy:
            task.cancel()
        for group in self.joined:
            await hints.bus().leave(group, self.hear)

    async def _tell(self, said: "asyncio.Queue[hints.Message]") -> None:
        """Send messages until the page is gone or may see no more; close it if that fails, as it would look live."""
        with suppress(OSError):  # it is gone
            try:
                await self._tell_on(said)
            except (AnyDatabaseError, RedisError) as error:
                logger.warning("a page is closed and should reconnect: %r", error)
                await self.close(CLOSE_FAILED, "come again")

    async def _tell_on(self, said: "asyncio.Queue[hints.Message]") -> None:
        """Send messages, and check the session's rights from time to time."""
        while True:
            message = await said.get()
            asked = message["type"] == CHECK
            if (
                asked or time.monotonic() - self.checked > ASK_AGAIN_SECONDS
            ) and await self._may_watch() != self.watched:
                await self.close(CLOSE_DENIED, "signed out, or no longer yours")
                return
            if not asked:
                await self.send(_text(message))


def _text(message: hints.Message) -> str:
    """Return telemetry as it came; of anything else name and time, as the page fetches the fragment again."""
    if message["type"] == "live.usage":
        return str(message["text"])
    return json.dumps({"type": "changed", "uid": message["uid"], "at": message["at"]})


def _groups(session: Any, user: Any, query: dict[str, str]) -> tuple[str, ...]:
    """Return the groups that this session may watch; none if it may not."""
    user = find_session_user(session, user)
    if user is None:
        return ()
    principal = principals.of_user(user)
    if "claim" in query:
        try:
            claim = Claim.objects.visible_to(principal).filter(uid=query["claim"]).first()
        except ValidationError:
            return ()
        return (events.claim_group(claim.uid),) if claim else ()
    if "node" in query and principal.is_operator:
        node = Node.objects.filter(name=query["node"]).first()
        return (events.node_group(node.uid), events.claims_group(None)) if node else ()
    if query.get("claims") == "all":
        return tuple(events.claims_group(tenant) for tenant in ([None] if principal.is_operator else principal.roles))
    return ()
