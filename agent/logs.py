"""The agent's log: one line of key=value pairs per event, on stderr."""

import sys

import structlog

KEYS_FIRST = ["timestamp", "level", "event"]


def configure() -> None:
    """Send every structlog line to stderr; a closed stderr never ends the agent."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=KEYS_FIRST, drop_missing=True, bool_as_flag=False),
        ],
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
