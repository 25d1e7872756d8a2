"""An HTTP server in the place of an API server that misbehaves: ends watches, freezes, throttles, forgets versions."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from apps.clusters.kube.client import Client

Json = dict[str, Any]


class Misbehaving:
    """A server while the context is entered. It lists no objects, and treats watches by `watches`.

    `watches`: `ends` at once, is `gone`, is `quiet` (alive, without bookmarks), or has `bookmarks` each 0.2 s.
    """

    def __init__(self, watches: str = "quiet") -> None:
        self.watches = watches
        # No request is answered and no watch gets anything while set; connections stay open.
        self.frozen = threading.Event()
        # Retry-After of refused lists, in seconds; 0: they are answered.
        self.throttle = 0
        # Moments and kinds of requests: list, watch, version.
        self.requests: list[tuple[float, str]] = []
        self._over = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.frozen.clear()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=30)

    def client(self) -> Client:
        """Return a client of this server; its patience is a second."""
        server = f"http://127.0.0.1:{self._server.server_address[1]}"
        made = Client(
            {
                "current-context": "it",
                "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
                "clusters": [{"name": "it", "cluster": {"server": server}}],
                "users": [{"name": "it", "user": {}}],
            }
        )
        made.patience_seconds = 1.0
        return made

    def count(self, kind: str) -> int:
        """Return the number of requests of this kind."""
        return sum(one == kind for _, one in list(self.requests))

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answer one request as this server does now."""
        url = urlsplit(request.path)
        query = parse_qs(url.query)
        kind = "version" if url.path == "/version" else "watch" if "watch" in query else "list"
        self.requests.append((time.monotonic(), kind))
        self._thaw()
        if kind == "watch":
            self._watch(request)
        elif kind == "list" and self.throttle:
            _send(request, 429, {"code": 429, "reason": "TooManyRequests"}, ("Retry-After", str(self.throttle)))
        elif kind == "list":
            _send(request, 200, {"metadata": {"resourceVersion": "7"}, "items": []})
        else:
            _send(request, 200, {"gitVersion": "v1.36.2"})

    def _watch(self, request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        if self.watches == "gone":
            _chunk(request, {"type": "ERROR", "object": {"code": 410, "reason": "Expired"}})
        while self.watches in ("quiet", "bookmarks") and not self._over.wait(0.2):
            self._thaw()
            if self.watches == "bookmarks":
                _chunk(request, {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "8"}}})
        request.wfile.write(b"0\r\n\r\n")

    def _thaw(self) -> None:
        while self.frozen.is_set() and not self._over.wait(0.05):
            pass


def _send(request: BaseHTTPRequestHandler, status: int, body: Json, *headers: tuple[str, str]) -> None:
    text = json.dumps(body).encode()
    request.send_response(status)
    for name, value in (("Content-Length", str(len(text))), *headers):
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(text)


def _chunk(request: BaseHTTPRequestHandler, event: Json) -> None:
    line = json.dumps(event).encode() + b"\n"
    request.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
    request.wfile.flush()
