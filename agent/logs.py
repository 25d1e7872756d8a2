"""The agent's log: one line of key=value pairs per event, on stderr."""

import contextlib
import os
from typing import TextIO, cast

import structlog

KEYS_FIRST = ["timestamp", "level", "event"]
STDERR = 2


class _Stderr:
    """A stream that never fails: a full disk under the log must not block a change of limits.

    Python's own stderr would keep what it could not write, and fail with it again at every later line.
    """

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(STDERR, text.encode(errors="replace"))

    def flush(self) -> None:
        """Do nothing: no text is buffered."""


def configure() -> None:
    """Send every structlog line to stderr; one that is closed or full never ends the agent."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=KEYS_FIRST, drop_missing=True, bool_as_flag=False),
        ],
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, _Stderr())),
        cache_logger_on_first_use=True,
    )
