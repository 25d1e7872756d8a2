"""Weekly time windows in a named time zone: "weekdays 09:00-18:00 Europe/Berlin", "mon,wed 22:00-06:00". Pure.

Days (`mon`, `mon,wed`, `mon-fri`, `weekdays`, `weekends`, `daily`), the begin and the end of the window by the wall
clock, and a time zone (UTC if there is none). A window whose end is not after its begin ends on the next day. On a day
on which the clocks change, a time that comes twice is the first one, and one that is skipped is as much later as the
clocks go forward.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from django.core.exceptions import ValidationError

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
GROUPS = {"weekdays": frozenset(range(5)), "weekends": frozenset((5, 6)), "daily": frozenset(range(7))}
WINDOW = re.compile(r"(?P<begin>[0-9]{1,2}(:[0-9]{2})?)-(?P<end>[0-9]{1,2}(:[0-9]{2})?)")
MOST_LETTERS = 100
EXAMPLE = 'like "weekdays 09:00-18:00 Europe/Berlin" or "mon,wed 22:00-06:00"'
ONE_DAY = timedelta(days=1)


class BadSchedule(ValueError):
    """The text is no schedule; the message says what is wrong, and how one is written."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A window of some days of the week: `begin` and `end` by the wall clock of the zone, in minutes of the day."""

    days: frozenset[int]
    begin: int
    end: int
    zone: ZoneInfo

    def is_open(self, at: datetime) -> bool:
        """Return True if the moment (with a time zone) is within a window."""
        return any(begin <= at < end for begin, end in self._around(at))

    def closed_since(self, at: datetime) -> datetime | None:
        """Return when the last window ended; None while one is open."""
        return (
            None if self.is_open(at) else max((end for _, end in self._around(at, weeks=2) if end <= at), default=None)
        )

    def closes_at(self, at: datetime) -> datetime | None:
        """Return when the window that is open ends, with those that follow it at once; None if none is open or ends."""
        if not self.is_open(at):
            return None
        ends = at
        for begin, end in sorted(self._around(at)):
            if begin <= ends < end:
                ends = end
        # Each day's window begins where the one before ends.
        return None if ends - at > 7 * ONE_DAY else ends

    def opens_at(self, at: datetime) -> datetime | None:
        """Return when the next window begins; None while one is open."""
        return None if self.is_open(at) else min(begin for begin, _ in self._around(at, weeks=2) if begin > at)

    def _around(self, at: datetime, *, weeks: int = 1) -> Iterator[tuple[datetime, datetime]]:
        """Yield the windows from so many weeks before the moment to as many after it, in UTC.

        Two of them have one in any case: a window in the hour that is skipped when the clocks go forward is empty.
        """
        today = at.astimezone(self.zone).date()
        for number in range(-7 * weeks - 1, 7 * weeks + 2):
            day = today + number * ONE_DAY
            if day.weekday() in self.days:
                last = day if self.end > self.begin else day + ONE_DAY
                begin, end = self._moment(day, self.begin), self._moment(last, self.end)
                if begin < end:
                    yield begin, end

    def _moment(self, day: date, minutes: int) -> datetime:
        day, minutes = day + ONE_DAY * (minutes // 1440), minutes % 1440
        return datetime.combine(day, time(minutes // 60, minutes % 60), tzinfo=self.zone).astimezone(UTC)


@cache
def time_zones() -> frozenset[str]:
    """Return the names of all time zones; cached, because it reads hundreds of files."""
    return frozenset(available_timezones())


def parse(text: str) -> Schedule:
    """Return the schedule. Raises BadSchedule."""
    words = text.split()
    if not 2 <= len(words) <= 3 or len(text) > MOST_LETTERS:
        raise BadSchedule(f"A schedule has days, a window of time and perhaps a time zone, {EXAMPLE}.")
    days, window = _days(words[0].lower()), WINDOW.fullmatch(words[1])
    if window is None:
        raise BadSchedule(f"{words[1]!r} is no window of time: write its begin and end, {EXAMPLE}.")
    begin, end = _minutes(window["begin"]), _minutes(window["end"])
    if begin in (end, 1440):
        raise BadSchedule(f"The window {words[1]} is empty: a whole day is 00:00-24:00.")
    zone = words[2] if len(words) == 3 else "UTC"
    if zone not in time_zones():
        raise BadSchedule(f"{zone!r} is no time zone: write one as Europe/Berlin or UTC.")
    return Schedule(days, begin, end, ZoneInfo(zone))


def validate(text: str) -> None:
    """Raise Django's ValidationError if the text is no schedule: the validator of every form and document."""
    try:
        parse(text)
    except BadSchedule as error:
        raise ValidationError(str(error)) from error


def _days(words: str) -> frozenset[int]:
    found = set[int]()
    for word in words.split(","):
        first, dash, last = word.partition("-")
        if word in GROUPS:
            found |= GROUPS[word]
        elif first in DAYS and not dash:
            found.add(DAYS.index(first))
        elif first in DAYS and last in DAYS:
            begin = DAYS.index(first)
            found |= {(begin + number) % 7 for number in range((DAYS.index(last) - begin) % 7 + 1)}
        else:
            raise BadSchedule(f"{word!r} is no day: write {', '.join(DAYS)}, a range, {', '.join(GROUPS)}, {EXAMPLE}.")
    return frozenset(found)


def _minutes(text: str) -> int:
    hours, _, minutes = text.partition(":")
    found = 60 * int(hours) + int(minutes or 0)
    if found > 1440 or int(minutes or 0) > 59:
        raise BadSchedule(f"{text} is no time of a day: write 00:00 to 24:00.")
    return found
