"""Secrets that a page shows exactly once: kept in the session for one redirect, then dropped."""

import time
from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext

KEY: Final = "shown-once"
# A redirect takes less; what nobody fetched is not kept for the rest of the session.
KEPT_SECONDS: Final = 60


def redirect_to_secret(request: HttpRequest, text: str, route: str, *args: Any, **facts: Any) -> HttpResponse:
    """Redirect to the page that shows the secret, with further facts for it (JSON)."""
    path = reverse(route, args=args)
    request.session[KEY] = {"path": path, "at": time.time(), "shown": {"text": text, **facts}}
    return redirect(path)


def take_secret(request: HttpRequest) -> dict[str, Any] | None:
    """Return the secret as `text` and its facts, and drop it; None, with a message, if there is none for this page."""
    kept = request.session.pop(KEY, None)
    if kept and kept["path"] == request.path and time.time() - kept["at"] < KEPT_SECONDS:
        shown: dict[str, Any] = kept["shown"]
        return shown
    messages.info(request, gettext("It was shown once, and cannot be shown again."))
    return None
