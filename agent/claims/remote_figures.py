"""The network use of each claim's clients, from the endpoint's counts."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from agent import wire

# The endpoint counts once a second, and says nothing while nothing changes.
FRESH_SECONDS = 2.5


class _Read(NamedTuple):
    at: float
    counts: Mapping[str, Any]
    # Per second since the counts before: received, sent, round trips.
    rates: tuple[float, float, float]


class Figures:
    """The last counts of each claim, and their rates."""

    def __init__(self) -> None:
        self._last: dict[str, _Read] = {}

    def note(self, claim_uid: str, counts: Mapping[str, Any], *, now: float) -> None:
        """Take the endpoint's counts of a claim."""
        rates = (0.0, 0.0, 0.0)
        if (before := self._last.get(claim_uid)) is not None and (seconds := now - before.at) > 0:
            received, sent, turns = (
                max(0.0, counts[name] - before.counts[name]) / min(seconds, FRESH_SECONDS)
                for name in ("received_bytes", "sent_bytes", "turns")
            )
            rates = (received, sent, turns)
        self._last[claim_uid] = _Read(now, counts, rates)

    def forget(self, claim_uid: str) -> None:
        """Forget a claim whose clients have left."""
        self._last.pop(claim_uid, None)

    def read(self, *, now: float) -> dict[str, wire.RemoteUse]:
        """Return the use of each claim that has connections, or had some a moment ago."""
        return {
            claim_uid: _use_of(one, is_fresh=now - one.at < FRESH_SECONDS)
            for claim_uid, one in self._last.items()
            if one.counts["channels"] or now - one.at < FRESH_SECONDS
        }


def _use_of(one: _Read, *, is_fresh: bool) -> wire.RemoteUse:
    received, sent, turns = one.rates if is_fresh else (0.0, 0.0, 0.0)
    trip = one.counts["trip_seconds"]
    return wire.RemoteUse(
        connections=one.counts["channels"],
        received_bytes=one.counts["received_bytes"],
        sent_bytes=one.counts["sent_bytes"],
        round_trips=one.counts["turns"],
        received_bytes_per_second=received,
        sent_bytes_per_second=sent,
        round_trips_per_second=turns,
        trip_ms=None if trip is None else trip * 1000,
    )
