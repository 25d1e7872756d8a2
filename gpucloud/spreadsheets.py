"""What is sent as CSV is opened in a spreadsheet, and that runs what looks like a formula."""

import string
from typing import Any

# A byte-order mark, zero-width characters, and the marks of a text's direction.
HIDDEN = "\0\ufeff\u200b\u200c\u200d\u200e\u200f\u2060\xa0\u3000"

# What makes it take a text for one, full-width forms included: East Asian versions read them alike.
FORMULAS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def inert(value: Any) -> Any:
    """Return the value as it runs nowhere: names are anybody's to choose.

    White space and characters that are not shown do not hide a formula: some programs drop them when they read a file.
    """
    if not isinstance(value, str):
        return value
    shown = value.lstrip(HIDDEN + string.whitespace).lstrip()
    return f"'{value}" if shown.startswith(FORMULAS) or value[:1] in {"\t", "\r", "\n"} else value
