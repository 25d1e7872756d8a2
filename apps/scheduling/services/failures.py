"""What raised where nothing should: a claim or a pool is set aside, so that the others go on, and tried again later.

An error of the database's session is no such failure: whoever holds the session begins anew.
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


# After these nothing more can be done on the session. Errors that data cause (IntegrityError) are not among them.
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
    """Do the same to each, in a transaction of its own, and add up; over which it raises is logged, and left."""
    done = 0
    for row in rows:
        try:
            done += act(row)
        except SESSION_LOST:
            raise
        except Exception:
            logger.exception("%r failed, and is left as it is", row)
    return done


class Backoff:
    """What has failed, by key, and until when it is left alone: each time twice as long. Times are of one clock."""

    # What has gone well for so many times its last pause begins anew.
    FORGIVEN = 10

    def __init__(self, *, first_seconds: float, most_seconds: float) -> None:
        self._first, self._most = first_seconds, most_seconds
        self._pauses: dict[Hashable, tuple[float, float]] = {}

    def record_failure(self, key: Hashable, *, now: float) -> float:
        """It has failed; until when it is left alone."""
        until, pause = self._pauses.get(key, (0.0, 0.0))
        forgiven = now > until + self.FORGIVEN * pause
        pause = self._first if forgiven else min(2 * pause, self._most)
        self._pauses[key] = now + pause, pause
        # Of what never came back nothing is kept.
        old = [one for one, (end, length) in self._pauses.items() if now > end + self.FORGIVEN * length]
        for one in old:
            del self._pauses[one]
        return now + pause

    def is_paused(self, key: Hashable, *, now: float) -> bool:
        """Whether it is still left alone."""
        return key in self._pauses and now < self._pauses[key][0]


def set_aside_refusal(until: float) -> Refused:
    """As its owner is told."""
    detail = f"The scheduler failed over this request: it tries again at {utc(until)}, or when the claim changes"
    return Refused((Reason(SET_ASIDE, 0, f"{detail}. What went wrong is in the scheduler's log"),))
