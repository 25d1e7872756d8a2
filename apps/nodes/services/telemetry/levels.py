"""The resolutions in which telemetry is kept, and which of them a window is read from. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

# Every span begins a whole number of its length after this, so a day is UTC's.
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


class Level(NamedTuple):
    """One resolution. A raw second has no span."""

    table: str
    span: timedelta


RAW = Level("nodes_usageframe", timedelta(0))
TENS = Level("nodes_usagetens", timedelta(seconds=10))
MINUTE = Level("nodes_usageminute", timedelta(minutes=1))
HOUR = Level("nodes_usagehour", timedelta(hours=1))
DAY = Level("nodes_usageday", timedelta(days=1))
# Each is rolled up from the one before it.
ROLLED = (TENS, MINUTE, HOUR, DAY)


class Segment(NamedTuple):
    """A part of a window and the level that it is read from."""

    level: Level
    begin: datetime
    end: datetime


def floor(moment: datetime, span: timedelta) -> datetime:
    """The beginning of the span in which it lies."""
    return EPOCH + (moment - EPOCH) // span * span


def ceil(moment: datetime, span: timedelta) -> datetime:
    """The first beginning of a span that is not before it."""
    return EPOCH - (EPOCH - moment) // span * span


def segments(begin: datetime, end: datetime, levels: Sequence[Level], *, rolled: datetime) -> list[Segment]:
    """The window in parts that touch and do not overlap: whole spans of the coarsest level, finer ones at its ends.

    `levels`: the finest first, raw seconds among them or not. Nothing is rolled up from `rolled` on.
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
