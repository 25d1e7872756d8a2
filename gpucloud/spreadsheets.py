"""What is sent as CSV is opened in a spreadsheet, and that runs what looks like a formula."""

from typing import Any

# What makes it take a text for one.
FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")


def inert(value: Any) -> Any:
    """The value, as it runs nowhere: names are anybody's to choose."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULAS) else value
