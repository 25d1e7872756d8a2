"""The ASGI application around all others: it serves notebooks' hosts, which so have no page of the console."""

from typing import Any

from asgiref.typing import ASGI3Application

from apps.notebooks import hosts, policy, requests, sockets
from apps.notebooks.pages import Receive, Send


class NotebookHosts:
    """The application that passes on all requests to other hosts."""

    def __init__(self, application: ASGI3Application) -> None:
        self._application: Any = application

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Serve the request, or pass it on."""
        host = policy.find(scope.get("headers", ()), b"host")
        if not (hosts.is_on() and hosts.is_below(host)):
            await self._application(scope, receive, send)
        elif scope["type"] == "websocket":
            await sockets.serve(hosts.notebook_of(host), scope, receive, send)
        else:
            await requests.serve(hosts.notebook_of(host), scope, receive, send)
