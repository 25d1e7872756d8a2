"""Django behind ASGI, with one change of threads for each request.

Django's own handler enters and leaves the request's thread for every middleware and signal, and makes that thread anew
for each request; all our views and middleware are synchronous, so a request here goes into a thread once and comes back
with its answer. That is a third of what a small request costs. A client that hangs up changes nothing: what was
asked for is done, and nobody reads the answer.
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
    """The server's event loop, in a thread that answers a request; None anywhere else."""
    return getattr(_of_thread, "loop", None)


class OneThread(ASGIHandler):
    """Django's handler for servers whose views are all synchronous."""

    def __init__(self) -> None:
        super().__init__()
        # As many as there are connections to the database: more would wait for one.
        self._threads = ThreadPoolExecutor(settings.REQUEST_THREADS, thread_name_prefix="request")
        # Hundreds of open pages ask for their parts at once, and again soon: whoever wants something done passes them.
        self._refreshes = asyncio.Semaphore(max(1, settings.REQUEST_THREADS // 2))

    def load_middleware(self, is_async: bool = False) -> None:
        """All of it synchronous, whatever else it could be."""
        super().load_middleware(is_async=False)

    async def __call__(self, scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        """Read the body, answer in a thread, send."""
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
    """Whether a page asks for a part of itself again."""
    return scope["method"] == "GET" and any(name == b"hx-request" for name, _ in scope["headers"])
