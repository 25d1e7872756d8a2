"""The agent's log: one line of key=value pairs per event, on stderr."""

import contextlib
import os
import traceback
from datetime import UTC, datetime

STDERR = 2


class Log:
    """A log in logfmt. Each method takes the event's name and its facts."""

    def info(self, event: str, **facts: object) -> None:
        _write("info", event, facts)

    def warning(self, event: str, **facts: object) -> None:
        _write("warning", event, facts)

    def error(self, event: str, **facts: object) -> None:
        _write("error", event, facts)

    def exception(self, event: str, **facts: object) -> None:
        """Log an error with the traceback of the exception that is being handled."""
        _write("error", event, facts | {"exception": traceback.format_exc().rstrip("\n")})


log = Log()


def _write(level: str, event: str, facts: dict[str, object]) -> None:
    """Write the line past Python's stderr; a closed or full one must not block a change of limits.

    Python's own stderr would keep what it could not write, and fail with it again at every later line.
    """
    at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    pairs = {"timestamp": at, "level": level, "event": event} | facts
    line = " ".join(f"{key}={as_logfmt(value)}" for key, value in pairs.items())
    with contextlib.suppress(OSError):
        os.write(STDERR, f"{line}\n".encode(errors="replace"))


def as_logfmt(value: object) -> str:
    """Return a value on one line, quoted where it has spaces, quotes or equals signs; nothing for None."""
    if value is None:
        return ""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    quoted = any(character in text for character in ' ="')
    if quoted:
        text = text.replace("\\", "\\\\").replace('"', '\\"')
    text = text.replace("\n", "\\n")
    return f'"{text}"' if quoted else text
