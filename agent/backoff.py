"""Exponential backoff with jitter, so that agents do not retry in step."""

import random

FIRST_SECONDS = 0.5
# All agents of a server that ends lose it at the same moment, and other servers are there: they come over a second.
FIRST_SPREAD_SECONDS = 0.25, 1.25
# With the time that connecting takes, a node is connected again within ten seconds of its server's return.
CAP_SECONDS = 8.0


class Backoff:
    """Exponential pauses up to a cap, the first random within a second, each later one within its upper half.

    A server that returns is then met by a thousand agents spread over seconds, not by all of them at once.
    """

    def __init__(self, cap_seconds: float = CAP_SECONDS) -> None:
        self._cap_seconds = cap_seconds
        self._failures = 0

    def next(self) -> float:
        """Return the seconds to wait before the next attempt."""
        pause = min(self._cap_seconds, FIRST_SECONDS * 2.0 ** min(self._failures, 20))
        spread = (pause / 2, pause) if self._failures else FIRST_SPREAD_SECONDS
        self._failures += 1
        return min(self._cap_seconds, random.uniform(*spread))  # noqa: S311 - spreads load, keeps no secret

    def reset(self) -> None:
        """Start again from the first pause, after a successful attempt."""
        self._failures = 0
