"""Isolation of failures: a claim or pool over which something raised is set aside and tried again later.

The others go on meanwhile. An error of the database session is no such failure: the owner of the session begins anew.
"""

import logging
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

import psycopg
from django.db import InterfaceError, InternalError, OperationalError

from apps.scheduling.core.moments import utc
from apps.scheduling.core.values import Reason, Refused

Row = TypeVar("Row")
logger = logging.getLogger(__name__)


class NoLongerLeader(Exception):
    """The session that held the pool's lock is gone; another scheduler may lead by now."""


# After these errors nothing more can be done on the session. Errors caused by data (IntegrityError) are not among them.
SESSION_LOST = (
    NoLongerLeader,
    OperationalError,
    InterfaceError,
    InternalError,
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.InternalError,
)
SET_ASIDE = "set-aside"


def each(rows: Iterable[Row], act: Callable[[Row], int]) -> int:
    """Apply `act` to each row in a transaction of its own and return the sum.

    A row over which it raises is logged and skipped. Raises SESSION_LOST errors.
    """
    done = 0
    for row in rows:
        try:
            done += act(row)
        except SESSION_LOST:
            raise
        except Exception:
            logger.exception("%r failed and is skipped", row)
    return done


class Backoff:
    """Failures by key, and the time until which each key is paused: each pause is twice as long.

    Times are of one clock.
    """

    # After this many pauses without a failure the next pause is the first again.
    FORGIVEN = 10

    def __init__(self, *, first_seconds: float, most_seconds: float) -> None:
        self._first, self._most = first_seconds, most_seconds
        self._pauses: dict[Hashable, tuple[float, float]] = {}

    def record_failure(self, key: Hashable, *, now: float) -> float:
        """Record a failure of the key; return the time until which it is paused."""
        until, pause = self._pauses.get(key, (0.0, 0.0))
        forgiven = now > until + self.FORGIVEN * pause
        pause = self._first if forgiven else min(2 * pause, self._most)
        self._pauses[key] = now + pause, pause
        # Keys that have not failed for long are dropped.
        old = [one for one, (end, length) in self._pauses.items() if now > end + self.FORGIVEN * length]
        for one in old:
            del self._pauses[one]
        return now + pause

    def is_paused(self, key: Hashable, *, now: float) -> bool:
        """Return True if the key is still paused."""
        return key in self._pauses and now < self._pauses[key][0]


def set_aside_refusal(until: float) -> Refused:
    """Return the refusal that the owner of a claim sees while it is set aside until this time (Unix seconds)."""
    detail = f"The scheduler failed over this request: it tries again at {utc(until)}, or when the claim changes"
    return Refused((Reason(SET_ASIDE, 0, f"{detail}. What went wrong is in the scheduler's log"),))
