"""The kept part of a program's output. Standard library only."""

import contextlib
import os
import time

from agent.jobs.files import DROPPED, OUTPUT, write

TAIL_BYTES, LINE_BYTES = 64 << 10, 128


class KeptOutput:
    """The kept output: its first part, and at its end a line that says how much was left out, and the last part."""

    def __init__(self, most: int) -> None:
        self._tail_room = min(TAIL_BYTES, most // 4)
        self._head_room = most - self._tail_room - LINE_BYTES
        self._tail = bytearray()
        self.dropped = self._told = 0
        self._told_at = 0.0
        self._file = os.open(OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def put(self, data: bytes) -> None:
        """Keep what there is room for."""
        head, rest = data[: self._head_room], data[self._head_room :]
        if head:
            self._head_room -= len(head)
            self._write(head)
        if rest:
            self._tail += rest
            excess = max(0, len(self._tail) - self._tail_room)
            del self._tail[:excess]
            self.dropped += excess

    def tell(self) -> None:
        """Write how much was dropped so far, once a second."""
        if self.dropped != self._told and time.monotonic() - self._told_at >= 1:
            self._told, self._told_at = self.dropped, time.monotonic()
            with contextlib.suppress(OSError):
                write(DROPPED, self.dropped)

    def close(self) -> None:
        """Write the last part."""
        if self.dropped:
            self._write(f"\n[gpucloud: {self.dropped} bytes of output were left out here]\n".encode())
        self._write(bytes(self._tail))
        with contextlib.suppress(OSError):
            os.fsync(self._file)
        os.close(self._file)

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError:
            # The disk is full: the program goes on without its output.
            self.dropped += len(data)
