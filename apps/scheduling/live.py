"""/ws/live/: what a page watches. Telemetry goes to charts; every other event is thin and makes the page ask again.

The page names one claim, one node, or `claims=all` in the query; what its session may see of that is asked before
anything is sent.
"""

import asyncio
import json
import time
from typing import Any
from urllib.parse import parse_qs

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.core.exceptions import ValidationError

from apps.nodes.models import Node
from apps.quotas import principals
from apps.quotas.models import User
from apps.scheduling import events, watching
from apps.scheduling.models import Claim

CLOSE_DENIED = 4403
# A right that was taken away ends what it let in within a minute.
ASK_AGAIN_SECONDS = 60.0


class LiveConsumer(AsyncWebsocketConsumer):
    """One open page."""

    watched: tuple[str, ...] = ()
    checked = 0.0
    watching: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """Join what the session may see; else close with 4403."""
        await self.accept()
        self.watched = await self._may_watch()
        if not self.watched:
            await self.close(CLOSE_DENIED, "not signed in, or not yours")
        for group in self.watched:
            await self.channel_layer.group_add(group, self.channel_name)
        if self.watched:
            self.watching = asyncio.ensure_future(watching.keep_watching(self.watched))

    async def _may_watch(self) -> tuple[str, ...]:
        self.checked = time.monotonic()
        query = {name: values[0] for name, values in parse_qs(self.scope["query_string"].decode("latin-1")).items()}
        return await database_sync_to_async(_groups)(self.scope.get("session"), self.scope.get("user"), query)

    async def disconnect(self, code: int) -> None:
        """Leave."""
        if self.watching is not None:
            self.watching.cancel()
        for group in self.watched:
            await self.channel_layer.group_discard(group, self.channel_name)

    async def live_usage(self, message: dict[str, Any]) -> None:
        """A second of telemetry."""
        await self._tell({**message, "type": "usage"})

    async def claim_changed(self, message: dict[str, Any]) -> None:
        """Thin: the page fetches the fragment again."""
        await self._tell({"type": "changed", "uid": message["uid"]})

    async def _tell(self, message: dict[str, Any]) -> None:
        """Now and then the session is asked again whether it still may."""
        if time.monotonic() - self.checked > ASK_AGAIN_SECONDS and await self._may_watch() != self.watched:
            await self.close(CLOSE_DENIED, "signed out, or no longer yours")
            return
        await self.send(json.dumps(message))


def _groups(session: Any, user: Any, query: dict[str, str]) -> tuple[str, ...]:
    """The groups that this session may watch; none where it may not. Asks the database, not the socket's memory."""
    if user is None or not user.is_authenticated or not session.exists(session.session_key):
        return ()
    user = User.objects.filter(pk=user.pk, is_active=True).first()
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
