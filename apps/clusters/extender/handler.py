"""ASGI handler of the scheduler extender, without Django's stack, for answers within milliseconds.

It authorises callers by network, or by client certificate if the server asks for one. Bodies may be larger here than
elsewhere: a thousand nodes of 10 KB each are ten megabytes, and come with every pod.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Any

from apps.clusters import metrics
from apps.clusters.admission import handler as admission
from apps.clusters.extender import incumbents, others, predicates, preempting
from apps.clusters.extender.cluster import Extended

logger = logging.getLogger(__name__)

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
Webhooks = Callable[[Scope, Receive, Send], Awaitable[None]]
Networks = Iterable[IPv4Network | IPv6Network]
MOST_BODY_BYTES = 256 << 20
# A watch is silent for 75 s at most before the API server is asked, which takes 10 s.
STALE_SECONDS = 90.0
# Readiness of one of several extenders: a Service sends kube-scheduler to the one that leads.
LEADING = "/leading"

VERBS: dict[str, Callable[[Extended, bytes], bytes]] = {
    "/scheduler/predicates": predicates.answer,
    "/scheduler/prioritize": others.prioritize,
    "/scheduler/bind": others.bind,
    "/scheduler/preempt": preempting.preempt,
    **incumbents.VERBS,
}


class ExtenderHandler:
    """Handler of `/clusters/NAME/scheduler/…`, `/scheduler/…` of the first cluster, `/version` and `/healthz`."""

    def __init__(
        self,
        clusters: Mapping[str, Extended],
        *,
        networks: Networks | None,
        version: str,
        first: Callable[[], str | None] | None = None,
        leads: Callable[[], bool] = lambda: True,
        webhooks: Webhooks = admission.application,
    ) -> None:
        """Serve these clusters; `networks` None: client certificates authorise the callers.

        `first` returns the name of the cluster that was connected first; None: the mapping's first. `leads` returns
        False while another extender answers kube-scheduler.
        """
        self._leads, self._webhooks = leads, webhooks
        self._clusters, self._networks, self._version = clusters, networks, version
        self._first = first or (lambda: next(iter(self._clusters), None))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        path, method = str(scope["path"]), scope["method"]
        if path == LEADING and method == "GET":
            # The kubelet asks, from addresses of its own.
            await self._say_whether_leading(send)
            return
        if not self._admits(scope):
            await _send(send, 403, b"Not from here: see EXTENDER_CIDRS.\n", "text/plain")
            return
        await self._dispatch(path, method, scope, receive, send)

    async def _dispatch(self, path: str, method: str, scope: Scope, receive: Receive, send: Send) -> None:
        if path in ("/version", "/healthz", "/metrics") and method == "GET":
            await self._report_state(send, path)
            return
        if path.startswith("/admission/") or path.rstrip("/") in admission.WEBHOOKS:
            await self._webhooks(scope, receive, send)
            return
        if incumbents.INSPECT in path and method == "GET":
            await self._inspect(send, path)
            return
        verb, cluster = self._route(path)
        if verb is None:
            await _send(send, 404, b"404 page not found\n", "text/plain")
        elif method != "POST":
            await _send(send, 405, b"Method Not Allowed\n", "text/plain")
        elif not self._leads():
            await _send(send, 503, b"Another extender leads.\n", "text/plain")
        elif cluster is None:
            await _send(send, 404, b"The first cluster is not served. Ask /clusters/NAME/scheduler/...\n", "text/plain")
        else:
            await self._answer(verb, cluster, receive, send)

    async def _say_whether_leading(self, send: Send) -> None:
        leads = self._leads()
        await _send(send, 200 if leads else 503, b"leading\n" if leads else b"Another extender leads.\n", "text/plain")

    async def _answer(
        self, verb: Callable[[Extended, bytes], bytes], cluster: Extended, receive: Receive, send: Send
    ) -> None:
        body = await _body(receive)
        if body is None:
            await _send(send, 413, b"The body is too large.\n", "text/plain")
        elif not body:
            await _send(send, 400, b"Please send a request body\n", "text/plain")
        elif not cluster.mirror.ready:
            # kube-scheduler retries the pod; an answer without the running pods would promise GPUs twice.
            await _send(send, 503, b"The cluster's pods are not known yet.\n", "text/plain")
        else:
            try:
                text = await asyncio.to_thread(verb, cluster, body)
            # NotUnderstood, NotAQuantity, and malformed text: half a character, endless nesting.
            except (ValueError, RecursionError) as error:
                await _send(send, 400, str(error).encode(errors="replace"), "text/plain")
            else:
                await _send(send, 200, text, "application/json")

    async def _inspect(self, send: Send, path: str) -> None:
        before, _, node = path.partition(incumbents.INSPECT)
        _, cluster = self._route(f"{before}/scheduler/predicates")
        if cluster is None:
            await _send(
                send,
                404,
                b"The first cluster is not served. Ask /clusters/NAME/gpushare-scheduler/inspect\n",
                "text/plain",
            )
        elif not cluster.mirror.ready:
            await _send(send, 503, b"The cluster's pods are not known yet.\n", "text/plain")
        else:
            await _send(send, 200, incumbents.inspect(cluster, node.strip("/") or None), "application/json")

    async def _report_state(self, send: Send, path: str) -> None:
        if path == "/version":
            await _send(send, 200, self._version.encode(), "text/plain; charset=utf-8")
            return
        clusters = sorted(dict(self._clusters).items())
        if path == "/metrics":
            numbers = metrics.as_text({name: cluster.ages() for name, cluster in clusters})
            await _send(send, 200, numbers, "text/plain; version=0.0.4; charset=utf-8")
            return
        waiting = [name for name, cluster in clusters if not cluster.mirror.ready]
        ages = {name: cluster.ages() for name, cluster in clusters}
        stale = [name for name, age in ages.items() if age and max(age.values()) > STALE_SECONDS]
        text = f"waiting for {', '.join(waiting)}\n" if waiting else "" if stale else "ok\n"
        text += f"nothing heard from {', '.join(stale)}\n" if stale else ""
        for name, age in ages.items():
            text += "".join(f"{name}: {kind} heard {seconds:.0f} s ago\n" for kind, seconds in sorted(age.items()))
        await _send(send, 503 if waiting or stale else 200, text.encode(), "text/plain")

    def _admits(self, scope: Scope) -> bool:
        if self._networks is None:
            return True
        client = scope.get("client")
        if not client:
            return False
        address = ip_address(client[0])
        return any(address in network for network in self._networks)

    def _route(self, path: str) -> tuple[Callable[[Extended, bytes], bytes] | None, Extended | None]:
        clusters = dict(self._clusters)
        if path in VERBS:
            # It stays with the first: its kube-scheduler may have been configured before there were others.
            return VERBS[path], clusters.get(self._first() or "")
        for name, cluster in clusters.items():
            if (verb := VERBS.get(path.removeprefix(f"/clusters/{name}"))) is not None:
                return verb, cluster
        return None, None


async def _body(receive: Receive) -> bytes | None:
    chunks, size = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b""
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > MOST_BODY_BYTES:
            return None
        if not message.get("more_body"):
            return b"".join(chunks)


async def _send(send: Send, status: int, body: bytes, content_type: str) -> None:
    headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
