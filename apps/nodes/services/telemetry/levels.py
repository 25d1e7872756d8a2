"""Resolutions of telemetry, and the choice of resolutions for a window. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

# Every span begins a whole number of its lengths after this, so days are UTC days.
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


class Level(NamedTuple):
    """One resolution. Raw seconds have no span."""

    table: str
    span: timedelta


RAW = Level("nodes_usageframe", timedelta(0))
TENS = Level("nodes_usagetens", timedelta(seconds=10))
MINUTE = Level("nodes_usageminute", timedelta(minutes=1))
HOUR = Level("nodes_usagehour", timedelta(hours=1))
DAY = Level("nodes_usageday", timedelta(days=1))
# Each is rolled up from the previous one.
ROLLED = (TENS, MINUTE, HOUR, DAY)


class Segment(NamedTuple):
    """A part of a window and its level."""

    level: Level
    begin: datetime
    end: datetime


def floor(moment: datetime, span: timedelta) -> datetime:
    """Return the beginning of the moment's span."""
    return EPOCH + (moment - EPOCH) // span * span


def ceil(moment: datetime, span: timedelta) -> datetime:
    """Return the first beginning of a span at or after the moment."""
    return EPOCH - (EPOCH - moment) // span * span


def segments(begin: datetime, end: datetime, levels: Sequence[Level], *, rolled: datetime) -> list[Segment]:
    """Divide the window into adjacent parts: whole spans of the coarsest level, finer ones at the ends.

    `levels`: the finest first, with or without raw seconds. Roll-ups end at `rolled`.
    """
    if not levels or begin >= end:
        return []
    *finer, level = levels
    if level is RAW:
        return [Segment(level, begin, end)]
    first, last = ceil(begin, level.span), floor(min(end, rolled), level.span)
    if first >= last:
        return segments(begin, end, finer, rolled=rolled)
    head = segments(begin, first, finer, rolled=rolled)
    return [*head, Segment(level, first, last), *segments(last, end, finer, rolled=rolled)]
