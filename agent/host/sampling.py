"""The schedule of samples: one a second, and two soon after a change, so that a resize shows on a chart at once."""

import asyncio
from collections.abc import Iterable

TICK_SECONDS = 1.0
AFTER_CHANGE_SECONDS = (0.25, 0.5)
# Changes in a burst share their extra samples: at most 20 a second, however many resizes come.
NEAREST_SECONDS = 0.05


class Schedule:
    """The moments of the next samples, by the monotonic clock."""

    def __init__(self, *, now: float) -> None:
        self._tick = now + TICK_SECONDS
        self._extra: list[float] = []

    def note_change(self, *, now: float) -> None:
        """Schedule extra samples soon after a change was applied."""
        for moment in (now + delay for delay in AFTER_CHANGE_SECONDS):
            if not _near(moment, [*self._extra, self._tick]):
                self._extra.append(moment)
        self._extra.sort()

    @property
    def next(self) -> float:
        """The moment of the next sample."""
        return min([self._tick, *self._extra[:1]])

    def note_sample(self, *, now: float) -> None:
        """Record that a sample was taken, which covers all that were due. A missed tick is not made up for."""
        self._extra = [moment for moment in self._extra if moment > now]
        while self._tick <= now:
            self._tick += TICK_SECONDS


async def pause(early: asyncio.Event, seconds: float) -> bool:
    """Wait for the time to pass or for the event, which is cleared; return True if it was the event."""
    try:
        async with asyncio.timeout(max(seconds, 0)):
            await early.wait()
    except TimeoutError:
        pass
    came = early.is_set()
    early.clear()
    return came


def _near(moment: float, others: Iterable[float]) -> bool:
    return any(abs(moment - other) < NEAREST_SECONDS for other in others)
