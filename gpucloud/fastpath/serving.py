"""Django's ASGI handler with one thread switch per request.

Django's own handler enters and leaves the request's thread for every middleware and signal, and creates that thread for
each request. All our views and middleware are synchronous, so here a request enters a thread once and returns with its
response, which saves a third of the cost of a small request. A client that disconnects changes nothing: the request is
completed, and its response is dropped.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, cast

from django.conf import settings
from django.core import signals
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.http import HttpResponseBase
from django.urls import set_script_prefix

_of_thread = threading.local()


def loop() -> asyncio.AbstractEventLoop | None:
    """Return the server's event loop in a thread that handles a request; None elsewhere."""
    return getattr(_of_thread, "loop", None)


class SingleThreadHandler(ASGIHandler):
    """Django's handler for servers whose views are all synchronous."""

    def __init__(self) -> None:
        super().__init__()
        # One thread per database connection: more threads would wait for one.
        self._threads = ThreadPoolExecutor(settings.REQUEST_THREADS, thread_name_prefix="request")
        # Hundreds of open pages refresh their fragments at once and again soon: other requests overtake them.
        self._refreshes = asyncio.Semaphore(max(1, settings.REQUEST_THREADS // 2))

    def load_middleware(self, is_async: bool = False) -> None:
        """Load all middleware as synchronous."""
        super().load_middleware(is_async=False)

    async def __call__(self, scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        """Read the body, run the request in a thread, send the response."""
        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return
        here = asyncio.get_running_loop()
        with body:
            async with self._refreshes if _refreshes(scope) else nullcontext():
                response = await here.run_in_executor(self._threads, self._respond, scope, body, here)
        await self.send_response(response, send)
        if response.streaming:
            await here.run_in_executor(self._threads, response.close)

    def _respond(self, scope: Any, body: Any, here: asyncio.AbstractEventLoop) -> HttpResponseBase:
        _of_thread.loop = here
        set_script_prefix(get_script_prefix(scope))
        signals.request_started.send(sender=self.__class__, scope=scope)
        request, refusal = self.create_request(scope, body)
        response: Any = refusal if request is None else self.get_response(request)
        if not response.streaming:
            response.close()
        return cast(HttpResponseBase, response)


def _refreshes(scope: Any) -> bool:
    """Return True if a page refreshes a fragment of itself."""
    return scope["method"] == "GET" and any(name == b"hx-request" for name, _ in scope["headers"])
