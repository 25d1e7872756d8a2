"""Logs of MPS servers: the fatal faults of clients, which end all clients of a server while it lives on."""

import re
import time

from agent.host.mps_places import Places

# A daemon in the foreground writes its servers' lines to its own output.
FILES = ("output", "server.log")
MOST_BYTES = 64 << 10
# Several lines follow from one fault.
AGAIN_SECONDS = 5.0
# A server's status is FAULT from a fatal fault until its old clients have gone. Words differ by version.
_FAULT = re.compile(rb"[^\n]*\b(?:fatal|fault)\b[^\n]*", re.IGNORECASE)
_STAMP = re.compile(r"^\[[^\]]*\]\s*")


class ServerLogs:
    """The logs of one daemon's servers, read as they grow."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._read_to: dict[str, int] = {}
        self._found_at = float("-inf")

    def skip(self) -> None:
        """Pass over what is there already."""
        self._read_to = {name: self._size_of(name) for name in FILES}

    def find_fault(self) -> str | None:
        """Return the first new line about a fatal fault, without its time; None if there is none."""
        lines = [found[0] for name in FILES if (found := _FAULT.search(self._read_new(name))) is not None]
        now = time.monotonic()
        if not lines or now - self._found_at < AGAIN_SECONDS:
            return None
        self._found_at = now
        return _STAMP.sub("", lines[0].decode(errors="replace").strip())[:200]

    def _size_of(self, name: str) -> int:
        try:
            return (self._places.log / name).stat().st_size
        except OSError:
            return 0

    def _read_new(self, name: str) -> bytes:
        size, begin = self._size_of(name), self._read_to.get(name, 0)
        if size == begin:
            return b""
        # It was cut when it was long.
        begin = max(0 if size < begin else begin, size - MOST_BYTES)
        try:
            with (self._places.log / name).open("rb") as file:
                file.seek(begin)
                found = file.read(MOST_BYTES)
        except OSError:
            return b""
        self._read_to[name] = begin + len(found)
        return found
