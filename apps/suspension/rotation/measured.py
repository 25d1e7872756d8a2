"""Durations of a claim's last suspension and resumption, from the timelines of the claims."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import pairwise

from apps.scheduling.models import ClaimState

Timeline = Sequence[Sequence[str]]


def last(timeline: Timeline, state: str) -> datetime | None:
    """Return when the claim last came to the state; None if it never did, or the timeline no longer says it."""
    found = (at for name, at in reversed(timeline) if name == state)
    return next((datetime.fromisoformat(at) for at in found), None)


def seconds_out(timeline: Timeline) -> float | None:
    """Return how long its programs took to leave their GPUs, the last time that they did."""
    found = _last_step(timeline, ClaimState.SUSPENDING, ClaimState.SUSPENDED)
    return None if found is None else (found[1] - found[0]).total_seconds()


def seconds_in(timeline: Timeline, others: Iterable[Timeline]) -> float | None:
    """Return how long its programs took to come back, from when the last of the others had left the GPUs."""
    found = _last_step(timeline, ClaimState.RESUMING, ClaimState.ACTIVE)
    if found is None:
        return None
    asked, done = found
    left = [datetime.fromisoformat(at) for other in others for name, at in other if name == ClaimState.SUSPENDED]
    return (done - max([asked, *(at for at in left if at < done)])).total_seconds()


def _last_step(timeline: Timeline, before: str, after: str) -> tuple[datetime, datetime] | None:
    steps = reversed(list(pairwise(timeline)))
    found = ((one[1], other[1]) for one, other in steps if (one[0], other[0]) == (before, after))
    begun, ended = next(found, (None, None))
    return None if begun is None or ended is None else (datetime.fromisoformat(begun), datetime.fromisoformat(ended))
