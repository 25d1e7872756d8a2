"""Format of log lines, and a limit on lines that outsiders can cause."""

import logging
import threading
import time
from collections.abc import Iterable

# Line ends of ASCII and Unicode for any reader, and control characters of terminals.
CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)}


class OneLine(logging.Formatter):
    """A formatter that writes each message on one line: no outsider can forge a log line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """Format the message on one line; a traceback after it keeps its lines."""
        record.message = record.message.translate(CONTROLS)
        return super().formatMessage(record)


class Occasional(logging.Filter):
    """A filter that passes one record in EVERY_SECONDS, without its traceback and with the number of those suppressed.

    For records that outsiders can cause at any rate: those whose message is one of `messages`, or all if none is given.
    """

    EVERY_SECONDS = 60.0

    def __init__(self, messages: Iterable[str] = ()) -> None:
        super().__init__()
        self._messages = frozenset(messages)
        self._lock = threading.Lock()
        self._next_at = 0.0
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record in place; return False to suppress it."""
        if self._messages and record.msg not in self._messages:
            return True
        with self._lock:
            if (now := time.monotonic()) < self._next_at:
                self._left_out += 1
                return False
            self._next_at, left_out, self._left_out = now + self.EVERY_SECONDS, self._left_out, 0
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        record.msg, record.args = record.getMessage(), None
        record.exc_info = record.exc_text = None
        if left_out:
            record.msg += f" ({left_out} more like this since the last line)"
        return True
