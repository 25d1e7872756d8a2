"""Sums over the whole fleet, kept by each server for a time in proportion to their cost.

A page that shows sums would cost as much as the fleet has rows, once a second for each open page. Kept so, they take a
bounded part of one core of the database, however large the fleet is and however many look; cheap ones are read anew.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")

# Sums that took a second are shown for twenty: a process spends at most 5 % of its time on each.
TIMES: Final = 20
MOST_SECONDS: Final = 30.0
# Of a fleet of hundreds of nodes. Less is read whenever it is asked for.
CHEAP_SECONDS: Final = 0.05


class _Kept:
    def __init__(self) -> None:
        self.reading = threading.Lock()
        self.value: Any = None
        self.until = 0.0


_kept: dict[str, _Kept] = {}


def keep_sums(name: str, read: Callable[[], T]) -> T:
    """Return the sums of this name; read them if there are none or their time is over.

    While one thread reads them, the others get the former ones, unless these are much too old: then they wait.
    """
    kept, now = _kept.setdefault(name, _Kept()), time.monotonic()
    is_old = kept.value is None or now > kept.until + MOST_SECONDS
    if now < kept.until or not kept.reading.acquire(blocking=is_old):
        former: T = kept.value
        return former
    try:
        if time.monotonic() >= kept.until:
            begun = time.monotonic()
            kept.value = read()
            cost = time.monotonic() - begun
            kept.until = time.monotonic() + (min(TIMES * cost, MOST_SECONDS) if cost >= CHEAP_SECONDS else 0)
        value: T = kept.value
        return value
    finally:
        kept.reading.release()
