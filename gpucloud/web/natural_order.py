"""Natural order of names in the database: node-2 before node-10, capitals beside small letters."""

from typing import Any, Final

from django.db.models import CharField, F, Func, Value
from django.db.models.functions import Collate, Lower

# Longer than any number that names count by; of a longer run of digits the last ones decide.
DIGITS: Final = 12


def natural_key(name: str) -> Any:
    """Return the expression of a name's sort key: each number padded with zeros, compared byte by byte.

    Not an ICU collation: PostgreSQL may be built without ICU, as the one of `make demo` is. An index may hold it.
    """
    padded = _replace(Lower(F(name)), r"(\d+)", "0" * DIGITS + r"\1")
    return Collate(_replace(padded, rf"\d*(\d{{{DIGITS}}})", r"\1"), "C")


def _replace(text: Any, pattern: str, replacement: str) -> Func:
    parts = (text, Value(pattern), Value(replacement), Value("g"))
    return Func(*parts, function="regexp_replace", output_field=CharField())
