"""Parts that websocket routes share."""

from channels.generic.websocket import AsyncWebsocketConsumer


class NoSuchSocket(AsyncWebsocketConsumer):
    """A consumer for unknown paths: refuses the handshake instead of raising in the server."""

    async def connect(self) -> None:
        """Refuse the handshake, which the client sees as HTTP 403."""
        await self.close()
