"""A simulated API server: real HTTPS with client certificates, lists and watches of a few kinds, in memory.

It validates nothing, counts no quotas and runs no controllers. Tests of those are marked `control_plane`.
"""

import asyncio
import base64
import gc
import json
import socket
import ssl
import threading
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs

import uvicorn
import yaml

from tests.clusters import authority

Json = dict[str, Any]
Key = tuple[str, str]


class Played:
    """A server while the context is entered; clients without a certificate of its authority get no answer."""

    def __init__(self, directory: Path) -> None:
        self.directory = authority.make(directory)
        self.objects: dict[str, dict[Key, Json]] = {"pods": {}, "nodes": {}, "namespaces": {}, "resourcequotas": {}}
        self.version = 1
        # The status of token reviews.
        self.review: Json = {}
        # The requests, by verb and path.
        self.requests: list[tuple[str, str]] = []
        self._events: list[tuple[int, str, str, Json]] = []
        self._lock = threading.Lock()
        self._socket = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(
            self._answer, interface="asgi3", lifespan="off", log_config=None, ssl_certfile=str(directory / "tls.crt"),
            ssl_keyfile=str(directory / "tls.key"), ssl_ca_certs=str(directory / "ca.crt"),
            ssl_cert_reqs=ssl.CERT_REQUIRED, timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="played", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=30)
        self._socket.close()
        # Clients that were disconnected or in the middle of a handshake are not errors.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()

    def kubeconfig(self, user: str = "gpucloud") -> str:
        """Return a kubeconfig with a client certificate."""
        files = authority.client(self.directory, user)
        certificate, key, trusted = (
            base64.b64encode(file.read_bytes()).decode() for file in (*files, self.directory / "ca.crt")
        )
        server = f"https://127.0.0.1:{self._socket.getsockname()[1]}"
        return yaml.safe_dump(
            {
                "current-context": "it",
                "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
                "clusters": [{"name": "it", "cluster": {"server": server, "certificate-authority-data": trusted}}],
                "users": [{"name": "it", "user": {"client-certificate-data": certificate, "client-key-data": key}}],
            }
        )

    def put(self, kind: str, item: Json, event: str = "ADDED") -> Json:
        """Create or change an object, and notify watchers."""
        with self._lock:
            self.version += 1
            meta = item["metadata"]
            meta["resourceVersion"] = str(self.version)
            key = meta.get("namespace", ""), meta["name"]
            if event == "DELETED":
                del self.objects[kind][key]
            else:
                self.objects[kind][key] = item
            self._events.append((self.version, kind, event, json.loads(json.dumps(item))))
        return item

    async def _serve(self) -> None:
        await self._server.serve(sockets=[self._socket])
        # Watchers do not hang up, and TLS would wait for that.
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0.1)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        path, method = scope["path"], scope["method"]
        query = {name: values[0] for name, values in parse_qs(scope["query_string"].decode()).items()}
        body = b""
        while (message := await receive()).get("more_body"):
            body += message["body"]
        body += message.get("body", b"")
        self.requests.append((method, path))
        if query.get("watch"):
            await self._watch(path.rpartition("/")[2], int(query["resourceVersion"]), receive, send)
            return
        status, said = self._said(method, path.strip("/").split("/"), json.loads(body or b"null"))
        await send(
            {"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]}
        )
        await send({"type": "http.response.body", "body": json.dumps(said).encode()})

    def _said(self, method: str, parts: list[str], body: Any) -> tuple[int, Any]:
        match method, parts:
            case "GET", ["version"]:
                return 200, {"gitVersion": "v1.36.2"}
            case "POST", ["apis", *_, "selfsubjectaccessreviews" | "subjectaccessreviews" | "tokenreviews" as kind]:
                return 201, {"status": self.review if kind == "tokenreviews" else {"allowed": True}}
            case "GET", ["api", "v1", kind]:
                items = list(self.objects[kind].values())
                return 200, {"metadata": {"resourceVersion": str(self.version)}, "items": items}
            case "POST", ["api", "v1", "namespaces", namespace, "pods", name, "binding"]:
                pod = self.objects["pods"][namespace, name]
                pod["spec"]["nodeName"] = body["target"]["name"]
                return 201, self.put("pods", pod, "MODIFIED")
            case "POST", ["api", "v1", "namespaces", _, "events"]:
                return 201, body
            case _, ["api", "v1", kind, name] if found := self.objects.get(kind, {}).get(("", name)):
                return 200, found
            case _, ["api", "v1", "namespaces", namespace, kind, name]:
                return self._one(method, kind, (namespace, name), body)
        return 404, {"code": 404, "reason": "NotFound", "message": "/".join(parts)}

    def _one(self, method: str, kind: str, key: Key, body: Mapping[str, Any]) -> tuple[int, Json]:
        found = self.objects.get(kind, {}).get(key)
        if found is None:
            return 404, {"code": 404, "reason": "NotFound", "message": "/".join(key)}
        if method == "PATCH":
            annotations = found["metadata"].setdefault("annotations", {})
            annotations.update(body["metadata"].get("annotations", {}))
            self.put(kind, found, "MODIFIED")
        return 200, found

    async def _watch(self, kind: str, since: int, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        gone = asyncio.ensure_future(receive())
        while not gone.done() and not self._server.should_exit:
            for version, named, event, item in list(self._events):
                if version > since and named == kind:
                    line = json.dumps({"type": event, "object": item}).encode() + b"\n"
                    await send({"type": "http.response.body", "body": line, "more_body": True})
                    since = version
            await asyncio.wait([gone], timeout=0.05)
        gone.cancel()
        await send({"type": "http.response.body", "body": b""})
