"""Parser of Kubernetes quantities: "8", "1500m", "2k", "1Gi", "1e3"."""

import re
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from functools import lru_cache

SUFFIXES = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9),
    "T": Decimal(10**12), "P": Decimal(10**15), "E": Decimal(10**18),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30),
    "Ti": Decimal(2**40), "Pi": Decimal(2**50), "Ei": Decimal(2**60),
}  # fmt: skip


# A longer exponent would be a number with more digits than fit into memory.
NUMBER = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,2})?)([a-zA-Z]{0,2})")


class NotAQuantity(ValueError):
    """The text is not a quantity."""


# A fleet has few distinct amounts, and each is parsed for every node and pod.
@lru_cache(maxsize=4096)
def value(quantity: str | float) -> int:
    """Return the amount as a whole number, rounded up as Kubernetes does. Raises NotAQuantity."""
    if isinstance(quantity, int):
        return quantity
    text = str(quantity)
    match = NUMBER.fullmatch(text)
    try:
        if text.isascii() and text.isdecimal():
            return int(text)
        if match is None:
            raise ValueError(text)
        return int((Decimal(match[1]) * SUFFIXES[match[2]]).to_integral_value(ROUND_CEILING))
    except (InvalidOperation, KeyError, OverflowError, ValueError) as error:
        raise NotAQuantity(f"{text!r} is no quantity of Kubernetes") from error
