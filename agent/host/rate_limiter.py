"""A rate limit per minute: a tenant that misbehaves in a loop must not fill the log of the whole platform."""

from collections import deque

WINDOW_SECONDS = 60.0


class RateLimiter:
    """A limiter that admits `most` events in any minute."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._at: deque[float] = deque()

    def admits(self, now: float) -> bool:
        """Return whether one more may pass now; it counts if so."""
        while self._at and now - self._at[0] > WINDOW_SECONDS:
            self._at.popleft()
        if len(self._at) >= self._most:
            return False
        self._at.append(now)
        return True
