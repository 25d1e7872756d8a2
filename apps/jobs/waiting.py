"""The `?wait=SECONDS` parameter of a job's output: the answer comes once there is something after `offset`.

An ASGI application around Django's, as for claims (`apps.scheduling.waiting`). The ordinary GET is repeated at a hint,
without a thread or a connection in between, so permissions and shape are the view's own. However fast a job writes, one
follower is answered at most twice a second, and all followers of this process together a bounded number of times.
"""

import asyncio
import json
import re
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl, urlencode

from asgiref.typing import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, HTTPScope

from apps.jobs.hints import job_group
from apps.scheduling.waiting import MAX_SECONDS, MOST_LOOKS_PER_SECOND, SECONDS, Answer, hung_up, nothing_more, refuse
from gpucloud import hints
from gpucloud.api.throttles import COUNTED

OUTPUT = re.compile(r"^/api/v1/jobs/([0-9a-f-]{36})/output/?$")
# After a hint: what comes in the meantime is one answer.
GATHER_SECONDS = 0.5
# A hint may get lost.
LOOK_AGAIN_SECONDS = 5.0


class WaitForOutput:
    """The ASGI application that wraps Django's."""

    def __init__(self, application: ASGI3Application) -> None:
        self.application = application
        self.waiting = 0

    async def __call__(self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Pass through every request that does not wait for output."""
        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        found = OUTPUT.match(scope["path"]) if scope["method"] == "GET" and "wait" in query else None
        if found is None:
            await self.application(scope, receive, send)
        elif not SECONDS.fullmatch(text := query.pop("wait")) or int(text) > MAX_SECONDS:
            await refuse(send)
        else:
            inner: Any = {**scope, "query_string": urlencode(query).encode()}
            gone = asyncio.create_task(hung_up(receive))
            self.waiting += 1
            try:
                await self._wait_for_more(inner, found[1], int(text), gone)
            finally:
                self.waiting -= 1
                gone.cancel()
            # Not held back, unlike what was read while it waited: many followers' parts would be much memory.
            inner = {**inner, COUNTED: True}
            await self.application(inner, nothing_more(), send)

    async def _wait_for_more(self, scope: HTTPScope, uid: str, seconds: int, gone: asyncio.Task[None]) -> None:
        """Return once there is output or the end, when the wait ends, or when the client is gone."""
        changed = asyncio.Event()

        def hear(_: hints.Message) -> None:
            changed.set()

        # One character is at most four bytes.
        probe: Any = {**scope, "query_string": scope["query_string"] + b"&most=4"}
        now = asyncio.get_running_loop().time
        deadline = now() + seconds
        await hints.bus().join(job_group(uid), hear)
        try:
            while True:
                changed.clear()
                answer = Answer()
                await self.application(probe, nothing_more(), answer.take)
                left = deadline - now()
                if _has_more(answer) or left <= 0 or gone.done():
                    return
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), min(left, LOOK_AGAIN_SECONDS))
                await asyncio.sleep(max(0.0, min(deadline - now(), self.pause())))
                # One request of the client is one in its rate limit.
                probe = {**probe, COUNTED: True}
        finally:
            await hints.bus().leave(job_group(uid), hear)

    def pause(self) -> float:
        """Return the seconds between a hint and the read: longer, the more requests wait."""
        return max(GATHER_SECONDS, self.waiting / MOST_LOOKS_PER_SECOND)


def _has_more(answer: Answer) -> bool:
    """Return whether a follower learns anything from this answer."""
    if answer.status != 200:
        return True
    part = json.loads(answer.body)
    return bool(part["next_offset"] > part["offset"] or part["complete"])
