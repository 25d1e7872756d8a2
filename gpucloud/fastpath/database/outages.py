"""Requests during an outage of the database: refused at once, instead of one by one after the pool's timeout.

A pool waits for a connection until its timeout, and waits longer after each failed try to connect. While a failover
lasts, every request would hold a thread for that time, and after its end the pool would still pause. Here the first
timeout begins an outage. During it, one thread at a time tries to connect, twice a second, and all others are refused;
the first success ends it.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from django.db import InterfaceError, InternalError, OperationalError
from psycopg import OperationalError as DriverError
from psycopg.errors import ReadOnlySqlTransaction

# Between two tries of all threads together.
TRY_SECONDS = 0.5


class Outage(DriverError):
    """The database was tried a moment ago and did not answer."""


class Outages:
    """Knowledge of this process about the reachability of one database."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._trying = threading.Lock()
        self._is_on = False
        self._next_try = 0.0

    def begin(self) -> None:
        """Record that no connection could be made."""
        self._is_on, self._next_try = True, self._clock() + TRY_SECONDS

    def check(self, connect: Callable[[], Any]) -> None:
        """Return if there is no outage; in one, try to connect if it is time to.

        Raises the driver's OperationalError.
        """
        if not self._is_on:
            return
        if self._clock() < self._next_try or not self._trying.acquire(blocking=False):
            raise Outage("the database did not answer a moment ago")
        try:
            connect().close()
            self._is_on = False
        finally:
            self._next_try = self._clock() + TRY_SECONDS
            self._trying.release()


def is_away(error: BaseException | None) -> bool:
    """Return True if the error says that the database is away, or is a standby that takes no writes.

    The transaction was rolled back or its end is unknown: the request can be repeated with its Idempotency-Key.
    """
    if isinstance(error, OperationalError | InterfaceError):
        return True
    return isinstance(error, InternalError) and isinstance(error.__cause__, ReadOnlySqlTransaction)
