"""The webhooks' listener on loopback, with the certificates of a directory."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from apps.clusters.admission.handler import application
from apps.clusters.extender.listener import configuration


@contextmanager
def serve(directory: Path, application: Any = application) -> Iterator[str]:
    """Serve until the block ends; return the URL."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = configuration(application, ssl_certfile=str(directory / "tls.crt"), ssl_keyfile=str(directory / "tls.key"))
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"https://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
