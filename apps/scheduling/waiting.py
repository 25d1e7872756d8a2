"""The `?wait=SECONDS` parameter of a claim's POST, PATCH and DELETE, and of the orders to suspend and resume it.

An ASGI application around Django's. The request itself runs as usual, in its thread and its transaction, and releases
both. Only then it waits, for a hint, without a thread or a connection; the claim is read again through the ordinary
GET, so permissions, shape and entity tag are that view's own. A hint may get lost, so the claim is also read again
every second (less often when hundreds wait).
"""

import asyncio
import json
import re
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl, urlencode

from asgiref.typing import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, HTTPScope

from apps.scheduling.events import claim_group
from gpucloud import hints
from gpucloud.api.problems import problem
from gpucloud.api.throttles import COUNTED

CLAIMS = re.compile(r"^/api/v1/claims(/[0-9a-f-]{36}(/(release|suspend|resume))?)?/?$")
MAX_SECONDS = 300
# Bounded: the interpreter refuses to read a number of thousands of digits.
SECONDS = re.compile(r"[0-9]{1,6}")
LOOK_AGAIN_SECONDS = 1.0
# A key in the scope of its own GETs, which are frequent and need not compute the place in the queue.
WAITED_FOR = "gpucloud.waited-for"
# The GETs of all waits of this process together: a thousand each second would leave no room for others.
MOST_LOOKS_PER_SECOND = 100
# The state in which a claim is once the order is done.
DONE = {"release": "released", "suspend": "suspended", "resume": "active"}
Message = Any


class WaitForClaim:
    """The ASGI application that wraps Django's."""

    def __init__(self, application: ASGI3Application) -> None:
        self.application = application
        self.waiting = 0

    async def __call__(self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Pass through every request that does not wait for a claim."""
        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        waits = scope["method"] in ("POST", "PATCH", "DELETE") and "wait" in query and CLAIMS.match(scope["path"])
        if not waits:
            await self.application(scope, receive, send)
        elif not SECONDS.fullmatch(text := query.pop("wait")) or int(text) > MAX_SECONDS:
            await refuse(send)
        else:
            inner: Any = {**scope, "query_string": urlencode(query).encode()}
            answer = await self._ask(inner, receive)
            if uid := answer.claim_uid():
                # A client that has hung up ends its wait, which reads the claim every second.
                gone = asyncio.create_task(hung_up(receive))
                try:
                    order = "release" if scope["method"] == "DELETE" else scope["path"].rstrip("/").rpartition("/")[2]
                    answer.follow(await self._wait_until_settled(inner, uid, int(text), gone, order), order)
                finally:
                    gone.cancel()
            await answer.replay(send)

    async def _ask(self, scope: HTTPScope, receive: ASGIReceiveCallable) -> "Answer":
        answer = Answer()
        await self.application(scope, receive, answer.take)
        return answer

    async def _wait_until_settled(
        self, scope: HTTPScope, uid: str, seconds: int, gone: asyncio.Task[None], order: str
    ) -> "Answer":
        """Return the claim once nothing more is expected, or as it is when the wait ends or the client is gone."""
        changed = asyncio.Event()

        def hear(message: hints.Message) -> None:
            # Telemetry goes to the same group.
            if message["type"] == "claim.changed":
                changed.set()

        deadline = asyncio.get_running_loop().time() + seconds
        self.waiting += 1
        try:
            await hints.bus().join(claim_group(uid), hear)
            while True:
                changed.clear()
                answer = await self._read(scope, uid)
                left = deadline - asyncio.get_running_loop().time()
                if left <= 0 or gone.done() or answer.settled(order):
                    return answer
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), min(left, self.pause()))
        finally:
            self.waiting -= 1
            await hints.bus().leave(claim_group(uid), hear)

    def pause(self) -> float:
        """Return the seconds between two reads without a hint: longer, the more waits there are."""
        return max(LOOK_AGAIN_SECONDS, self.waiting / MOST_LOOKS_PER_SECOND)

    async def _read(self, scope: HTTPScope, uid: str) -> "Answer":
        path = f"/api/v1/claims/{uid}/"
        dropped = (b"content-length", b"content-type", b"idempotency-key", b"if-match", b"transfer-encoding")
        headers = [item for item in scope["headers"] if item[0] not in dropped]
        get: Any = {
            **scope,
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": headers,
            COUNTED: True,
            WAITED_FOR: True,
        }
        return await self._ask(get, nothing_more())


class Answer:
    """A response that is held back."""

    def __init__(self) -> None:
        self.status = 500
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""

    async def take(self, message: Message) -> None:
        """Collect the response; this is the `send` of the application."""
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message["headers"])
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")

    def claim_uid(self) -> str | None:
        """Return the claim of a granted request; None for a preview, after which nothing is to come."""
        if not 200 <= self.status < 300:
            return None
        claim = json.loads(self.body)
        uid = claim.get("uid")
        return uid if isinstance(uid, str) and not claim.get("dry_run") else None

    def settled(self, order: str) -> bool:
        """Return True if waiting longer would show nothing new. `order`: the last part of the request's path."""
        if self.status == 503:
            return False  # the database fails over
        if self.status != 200:
            return True
        claim = json.loads(self.body)
        if order == "release" or claim["state"] in ("released", "failed"):
            return claim["state"] in ("released", "failed")
        # A refused order leaves the other of the two states, so either of them is the end.
        stays = claim["state"] in ("active", "suspended")
        return bool(stays and claim["observed_generation"] >= claim["generation"])

    def follow(self, later: "Answer", order: str) -> None:
        """Keep the first answer's status and headers, and show the later state with its entity tag.

        An answer of 202 is one of 200 once the order is done.
        """
        if later.status != 200:
            return
        fresh = {name.lower(): value for name, value in later.headers}
        replaced = (b"etag", b"content-length")
        self.headers = [
            (name, fresh.get(name.lower(), value) if name.lower() in replaced else value)
            for name, value in self.headers
        ]
        self.body = later.body
        if self.status == 202 and json.loads(self.body)["state"] == DONE.get(order):
            self.status = 200

    async def replay(self, send: ASGISendCallable) -> None:
        """Send the response."""
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers, "trailers": False})
        await send({"type": "http.response.body", "body": self.body, "more_body": False})


async def hung_up(receive: ASGIReceiveCallable) -> None:
    """Return when the client has left; its request was read to the end before."""
    while (await receive())["type"] != "http.disconnect":
        pass


def nothing_more() -> ASGIReceiveCallable:
    """Return the `receive` of a request without a body, from a client that stays."""
    sent = False

    async def receive() -> Any:
        nonlocal sent
        if sent:
            await asyncio.Event().wait()
        sent = True
        return {"type": "http.request", "body": b"", "more_body": False}

    return receive


async def refuse(send: ASGISendCallable) -> None:
    """Refuse a wait that is no number of seconds, or too long."""
    detail = f"wait must be a whole number of seconds, {MAX_SECONDS} at most."
    body = problem(400, "invalid-fields", "Invalid fields", detail, errors={"wait": [detail]})
    answer = Answer()
    answer.status, answer.body = 400, json.dumps(body).encode()
    answer.headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(answer.body)).encode()),
    ]
    await answer.replay(send)
