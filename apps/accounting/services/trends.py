"""GPU time of a report's period by day (UTC), and the forecast to the end of the month."""

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from apps.scheduling.core.metering import Piece
from apps.scheduling.services.charging.metering import gpu_hours
from apps.scheduling.services.fleet.reserved import EPOCH, MICROSECOND, microseconds

DAY_US = 86_400 * 10**6
# The forecast goes on at the mean of so many complete days: every weekday counts once.
FORECAST_DAYS = 7
# A period that ended longer ago has no forecast.
PRESENT = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Forecast:
    """The expected amount of the period, from its beginning to the end of the present month."""

    to: datetime
    reserved_us: int
    # Added to what is reserved so far.
    added_us: int


class Days:
    """Reserved and used percent-microseconds by day. A piece costs the same however many days it lasted."""

    def __init__(self) -> None:
        self._parts = defaultdict[int, int](int)
        # Changes of the core that is reserved for a whole day.
        self._steps = defaultdict[int, int](int)
        self._used = defaultdict[int, int](int)

    def reserve(self, piece: Piece) -> None:
        """Add a piece that was held."""
        first, last = piece.begin_us // DAY_US, (piece.end_us - 1) // DAY_US
        if first == last:
            self._parts[first] += piece.core_us
            return
        self._parts[first] += piece.core * ((first + 1) * DAY_US - piece.begin_us)
        self._parts[last] += piece.core * (piece.end_us - last * DAY_US)
        self._steps[first + 1] += piece.core
        self._steps[last] -= piece.core

    def use(self, hour_us: int, core_us: int) -> None:
        """Add the use within an hour."""
        self._used[hour_us // DAY_US] += core_us

    def rows(self, begin: datetime, until: datetime) -> list[dict[str, Any]]:
        """Return a row for each day that the period touches."""
        return [
            {
                "at": EPOCH + day * DAY_US * MICROSECOND,
                "gpu_hours_reserved": gpu_hours(reserved),
                "gpu_hours_used": gpu_hours(self._used.get(day, 0)),
            }
            for day, reserved in self._reserved(begin, until).items()
        ]

    def forecast(self, begin: datetime, until: datetime, now: datetime) -> Forecast | None:
        """Return the forecast at the mean of the last complete days.

        None for a period that ended before now, or that has no complete day yet.
        """
        by_day = self._reserved(begin, until)
        complete = [us for day, us in by_day.items() if day * DAY_US >= microseconds(begin)][:-1][-FORECAST_DAYS:]
        if not complete or until < now - PRESENT:
            return None
        end = (until.replace(day=1, hour=0, minute=0, second=0, microsecond=0) + timedelta(days=32)).replace(day=1)
        added = sum(complete) * (microseconds(end) - microseconds(until)) // (len(complete) * DAY_US)
        return Forecast(end, sum(by_day.values()) + added, added)

    def _reserved(self, begin: datetime, until: datetime) -> dict[int, int]:
        """Return what was reserved on each day of the period, zeros too."""
        first, last = microseconds(begin) // DAY_US, max(microseconds(begin), microseconds(until) - 1) // DAY_US
        level, found = 0, {}
        for day in range(first, last + 1):
            level += self._steps.get(day, 0)
            found[day] = self._parts.get(day, 0) + level * DAY_US
        return found
