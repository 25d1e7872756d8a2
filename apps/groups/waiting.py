"""The `?wait=SECONDS` parameter of a group's GET: the answer comes once the group differs from the caller's ETag.

An ASGI application around Django's. The GET is repeated every second (less often when hundreds wait), without a thread
or a connection in between, so permissions and shape are the view's own. Without If-None-Match nothing is waited for.
"""

import asyncio
import re
from typing import Any
from urllib.parse import parse_qsl, urlencode

from asgiref.typing import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, HTTPScope

from apps.scheduling.waiting import (
    LOOK_AGAIN_SECONDS,
    MAX_SECONDS,
    MOST_LOOKS_PER_SECOND,
    SECONDS,
    Answer,
    hung_up,
    nothing_more,
    refuse,
)
from gpucloud.api.throttles import COUNTED

GROUP = re.compile(r"^/api/v1/groups/[^/]+/?$")


class WaitForGroup:
    """The ASGI application that wraps Django's."""

    def __init__(self, application: ASGI3Application) -> None:
        self.application = application
        self.waiting = 0

    async def __call__(self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Pass through every request that does not wait for a group."""
        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        if not (scope["method"] == "GET" and "wait" in query and GROUP.match(scope["path"])):
            await self.application(scope, receive, send)
        elif not SECONDS.fullmatch(text := query.pop("wait")) or int(text) > MAX_SECONDS:
            await refuse(send)
        else:
            inner: Any = {**scope, "query_string": urlencode(query).encode()}
            gone = asyncio.create_task(hung_up(receive))
            self.waiting += 1
            try:
                answer = await self._wait_until_changed(inner, int(text), gone)
            finally:
                self.waiting -= 1
                gone.cancel()
            await answer.replay(send)

    async def _wait_until_changed(self, scope: Any, seconds: int, gone: asyncio.Task[None]) -> Answer:
        """Return the first answer other than 304, or the last one when the wait ends or the client is gone."""
        now = asyncio.get_running_loop().time
        deadline = now() + seconds
        while True:
            answer = Answer()
            await self.application(scope, nothing_more(), answer.take)
            left = deadline - now()
            if answer.status != 304 or left <= 0 or gone.done():
                return answer
            await asyncio.sleep(min(left, max(LOOK_AGAIN_SECONDS, self.waiting / MOST_LOOKS_PER_SECOND)))
            # One request of the client is one in its rate limit.
            scope = {**scope, COUNTED: True}
