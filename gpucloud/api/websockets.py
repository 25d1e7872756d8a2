"""What websocket routes share."""

from channels.generic.websocket import AsyncWebsocketConsumer


class NoSuchSocket(AsyncWebsocketConsumer):
    """An unknown path: refused at the handshake instead of raising in the server."""

    async def connect(self) -> None:
        """HTTP 403, as the protocol has it."""
        await self.close()
