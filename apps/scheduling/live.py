"""/ws/live/: what a page watches. Telemetry goes to charts; every other event is thin and makes the page ask again.

The page names one claim or one node in the query; whether its session may see that is asked before anything is sent.
"""

import json
from typing import Any
from urllib.parse import parse_qs

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.core.exceptions import ValidationError

from apps.nodes.models import Node
from apps.quotas import principals
from apps.scheduling import events
from apps.scheduling.models import Claim

CLOSE_DENIED = 4403


class LiveConsumer(AsyncWebsocketConsumer):
    """One open page."""

    group: str | None = None

    async def connect(self) -> None:
        """Join what the session may see; else close with 4403."""
        await self.accept()
        query = {name: values[0] for name, values in parse_qs(self.scope["query_string"].decode("latin-1")).items()}
        self.group = await database_sync_to_async(_group)(self.scope.get("user"), query)
        if self.group is None:
            await self.close(CLOSE_DENIED, "not signed in, or not yours")
            return
        await self.channel_layer.group_add(self.group, self.channel_name)

    async def disconnect(self, code: int) -> None:
        """Leave."""
        if self.group is not None:
            await self.channel_layer.group_discard(self.group, self.channel_name)

    async def live_usage(self, message: dict[str, Any]) -> None:
        """A second of telemetry."""
        await self.send(json.dumps({**message, "type": "usage"}))

    async def claim_changed(self, message: dict[str, Any]) -> None:
        """Thin: the page fetches the fragment again."""
        await self.send(json.dumps({"type": "changed", "uid": message["uid"]}))


def _group(user: Any, query: dict[str, str]) -> str | None:
    if user is None or not user.is_authenticated:
        return None
    principal = principals.of_user(user)
    if "claim" in query:
        try:
            claim = Claim.objects.visible_to(principal).filter(uid=query["claim"]).first()
        except ValidationError:
            return None
        return events.claim_group(claim.uid) if claim else None
    if "node" in query and principal.is_operator:
        node = Node.objects.filter(name=query["node"]).first()
        return events.node_group(node.uid) if node else None
    return None
