"""Parts that websocket routes share."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from channels.generic.websocket import AsyncWebsocketConsumer

from gpucloud.fastpath.database.outages import is_away

logger = logging.getLogger(__name__)

# RFC 6455's registry: the server cannot serve now, and the client may connect again later.
CLOSE_TRY_AGAIN_LATER = 1013
RETRY_AFTER = b"1"

Send = Callable[[dict[str, Any]], Awaitable[None]]


class NoSuchSocket(AsyncWebsocketConsumer):
    """A consumer for unknown paths: refuses the handshake instead of raising in the server."""

    async def connect(self) -> None:
        """Refuse the handshake, which the client sees as HTTP 403."""
        await self.close()


class TryAgainLater:
    """The application around all websockets: while the database is away, a client is told to come again.

    A handshake is answered 503 with Retry-After, an open connection is closed with 1013.
    """

    def __init__(self, application: Any) -> None:
        self._application = application

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Send) -> None:
        """Serve the connection until it ends."""
        is_accepted = False

        async def watch(message: dict[str, Any]) -> None:
            nonlocal is_accepted
            is_accepted = is_accepted or message["type"] == "websocket.accept"
            await send(message)

        try:
            await self._application(scope, receive, watch)
        except Exception as error:
            if not is_away(error):
                raise
            logger.warning("a websocket ends because the database is away: %s", error)
            if not is_accepted and "websocket.http.response" in scope.get("extensions", {}):
                await _refuse(send)
            else:
                await send({"type": "websocket.close", "code": CLOSE_TRY_AGAIN_LATER, "reason": "try again later"})


async def _refuse(send: Send) -> None:
    headers = [(b"retry-after", RETRY_AFTER), (b"content-length", b"0")]
    await send({"type": "websocket.http.response.start", "status": 503, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": b"", "more_body": False})
