"""Protection of CSV exports: a spreadsheet runs a cell that looks like a formula."""

import string
from typing import Any

# A byte-order mark, zero-width characters, and the marks of text direction.
HIDDEN = "\0\ufeff\u200b\u200c\u200d\u200e\u200f\u2060\xa0\u3000"

# Characters that begin a formula, full-width forms included: East Asian versions treat them alike.
FORMULAS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def escape_formula(value: Any) -> Any:
    """Return the value so that no spreadsheet runs it: users choose names freely.

    White space and invisible characters do not hide a formula: some programs drop them when they read a file.
    """
    if not isinstance(value, str):
        return value
    shown = value.lstrip(HIDDEN + string.whitespace).lstrip()
    return f"'{value}" if shown.startswith(FORMULAS) or value[:1] in {"\t", "\r", "\n"} else value
