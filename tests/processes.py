"""Helpers about processes and time for several tests."""

import http.client
import time
from collections.abc import Callable
from pathlib import Path


def alive(pid: int) -> bool:
    """Return True if the process runs; an ended one that is not reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in {"Z", "X"}


def eventually(condition: Callable[[], bool], *, seconds: float) -> bool:
    """Return True if the condition becomes true in this time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def http_status(port: int, path: str) -> int:
    """Return the status of a GET on loopback; 0 if nobody answers.

    For loops: `httpx.get` reads every trusted authority anew, 55 ms of CPU that the awaited process needs to start.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()
