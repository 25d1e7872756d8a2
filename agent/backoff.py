"""Exponential backoff with jitter, so that agents do not retry in step."""

import random

FIRST_SECONDS = 0.5
# With the time that connecting takes, a node is connected again within ten seconds of its server's return.
CAP_SECONDS = 8.0


class Backoff:
    """Exponential pauses up to a cap, each random within its upper half.

    A server that returns is then met by a thousand agents spread over seconds, not by all of them at once.
    """

    def __init__(self, cap_seconds: float = CAP_SECONDS) -> None:
        self._cap_seconds = cap_seconds
        self._failures = 0

    def next(self) -> float:
        """Return the seconds to wait before the next attempt."""
        pause = min(self._cap_seconds, FIRST_SECONDS * 2.0 ** min(self._failures, 20))
        self._failures += 1
        return random.uniform(pause / 2, pause)  # noqa: S311 - spreads load, keeps no secret

    def reset(self) -> None:
        """Start again from the first pause, after a successful attempt."""
        self._failures = 0
