"""How a line of the log looks."""

import logging

# Of ASCII and of Unicode: whatever some reader takes for the end of a line, or a terminal for a command.
CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)}


class OneLine(logging.Formatter):
    """A message is one line, whoever chose its words: nobody outside writes lines that look like ours."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """A traceback, which comes after the message, keeps its lines."""
        record.message = record.message.translate(CONTROLS)
        return super().formatMessage(record)
