"""The origin of a websocket: browsers send cookies with those of other sites' pages, too."""

from io import BytesIO
from typing import Any

from django.conf import settings
from django.core.exceptions import DisallowedHost
from django.core.handlers.asgi import ASGIRequest


def request_of(scope: dict[str, Any]) -> ASGIRequest:
    """Return a websocket's handshake as Django's request, which knows hosts and proxies."""
    scheme = "https" if scope.get("scheme") == "wss" else "http"
    return ASGIRequest({**scope, "type": "http", "method": "GET", "scheme": scheme}, BytesIO())


def is_same_origin(scope: dict[str, Any]) -> bool:
    """Return True if a page of this server opens the websocket: the rule that Django has for forms."""
    request = request_of(scope)
    origin = request.headers.get("Origin")
    try:
        own = f"{request.scheme}://{request.get_host()}"
    except DisallowedHost:
        return False
    return origin is not None and (origin == own or origin in settings.CSRF_TRUSTED_ORIGINS)
