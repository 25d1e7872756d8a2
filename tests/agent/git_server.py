"""A repository over HTTP with a name and a password: git's own `http-backend` behind a small server on loopback."""

import asyncio
import base64
import contextlib
import os
import subprocess
import threading
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit


class GitServer(ThreadingHTTPServer):
    """The server of one repository."""

    def __init__(self, repository: Path, name: str, password: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.root = repository.parent
        self.wanted = "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: GitServer

    def do_GET(self) -> None:
        self.answer(b"")

    def do_POST(self) -> None:
        self.answer(self.rfile.read(int(self.headers["Content-Length"])))

    def answer(self, body: bytes) -> None:
        if self.headers.get("Authorization") != self.server.wanted:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        head, _, content = self.run(body).partition(b"\r\n\r\n")
        self.send_response(200)
        for line in head.decode().split("\r\n"):
            self.send_header(*line.split(": ", 1))
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def run(self, body: bytes) -> bytes:
        """Return the answer of git's program, by the rules of CGI."""
        url = urlsplit(self.path)
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.server.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": self.command,
            "PATH_INFO": url.path,
            "QUERY_STRING": url.query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        words = ["git", "http-backend"]
        return subprocess.run(words, input=body, env=environment, capture_output=True, check=True).stdout

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextlib.asynccontextmanager
async def served_with_password(repository: Path, name: str, password: str) -> AsyncIterator[str]:
    """Serve the repository to whoever knows the password; yield its URL."""
    server = GitServer(repository, name, password)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/{repository.name}"
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        thread.join()
