"""Weekly windows: how they are written, and what they mean on days on which the clocks change."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucloud.schedules import BadSchedule, Schedule, parse

BERLIN = "Europe/Berlin"


def at(text: str) -> datetime:
    """Return a moment of UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "days", "begin", "end", "zone"),
    [
        ("weekdays 9-18", {0, 1, 2, 3, 4}, 540, 1080, "UTC"),
        ("weekdays 09:00-18:00 Europe/Berlin", {0, 1, 2, 3, 4}, 540, 1080, BERLIN),
        ("mon,wed 22:00-06:00", {0, 2}, 1320, 360, "UTC"),
        ("Fri-Mon 0:30-24:00 Asia/Tokyo", {4, 5, 6, 0}, 30, 1440, "Asia/Tokyo"),
        ("weekends,wed 00:00-24:00", {5, 6, 2}, 0, 1440, "UTC"),
        ("daily  20-8  UTC", set(range(7)), 1200, 480, "UTC"),
    ],
)
def test_what_can_be_written(text: str, days: set[int], begin: int, end: int, zone: str) -> None:
    found = parse(text)
    assert found == Schedule(frozenset(days), begin, end, ZoneInfo(zone))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "A schedule has days"),
        ("weekdays", "A schedule has days"),
        ("weekdays 9-18 Europe/Berlin now", "A schedule has days"),
        ("x" * 60 + " " + "y" * 60, "A schedule has days"),
        ("holidays 9-18", "'holidays' is no day"),
        ("mon-holiday 9-18", "'mon-holiday' is no day"),
        ("mon, 9-18", "'' is no day"),
        ("mon 9", "'9' is no window"),
        ("mon 9.00-18.00", "is no window"),
        ("mon 9:00-25:00", "25:00 is no time"),
        ("mon 9:60-18:00", "9:60 is no time"),
        ("mon 24:01-3:00", "24:01 is no time"),
        ("mon 9-9", "is empty"),
        ("mon 24-6", "is empty"),
        ("mon 9-18 Europe/Bonn", "'Europe/Bonn' is no time zone"),
        ("mon 9-18 ../../etc/passwd", "is no time zone"),
    ],
)
def test_what_is_wrong_is_said(text: str, words: str) -> None:
    with pytest.raises(BadSchedule, match="(?s)" + words.replace(".", r"\.")):
        parse(text)


# Berlin: on 29 March 2026 2:00 becomes 3:00, on 25 October 3:00 becomes 2:00. Lord Howe goes by half an hour.
@pytest.mark.parametrize(
    ("text", "inside", "begin", "end"),
    [
        ("weekdays 9-18 Europe/Berlin", "2026-03-27 12:00", "2026-03-27 08:00", "2026-03-27 17:00"),
        ("weekdays 9-18 Europe/Berlin", "2026-03-30 12:00", "2026-03-30 07:00", "2026-03-30 16:00"),
        ("sun 0-24 Europe/Berlin", "2026-03-29 12:00", "2026-03-28 23:00", "2026-03-29 22:00"),
        ("sun 0-24 Europe/Berlin", "2026-10-25 12:00", "2026-10-24 22:00", "2026-10-25 23:00"),
        ("sat 22-6 Europe/Berlin", "2026-03-29 00:30", "2026-03-28 21:00", "2026-03-29 04:00"),
        ("sat 22-6 Europe/Berlin", "2026-10-25 00:30", "2026-10-24 20:00", "2026-10-25 05:00"),
        # Skipped: 2:30 is 3:30.
        ("sun 2:30-12 Europe/Berlin", "2026-03-29 05:00", "2026-03-29 01:30", "2026-03-29 10:00"),
        # Twice: the first 2:30.
        ("sun 2:30-12 Europe/Berlin", "2026-10-25 05:00", "2026-10-25 00:30", "2026-10-25 11:00"),
        ("sun 0-2:30 Europe/Berlin", "2026-10-24 23:00", "2026-10-24 22:00", "2026-10-25 00:30"),
        ("sun 0-6 Australia/Lord_Howe", "2026-10-03 16:00", "2026-10-03 13:30", "2026-10-03 19:00"),
    ],
)
def test_windows_on_days_on_which_the_clocks_change(text: str, inside: str, begin: str, end: str) -> None:
    found, second = parse(text), timedelta(seconds=1)
    assert found.is_open(at(inside))
    assert found.is_open(at(begin))
    assert not found.is_open(at(begin) - second)
    assert found.closes_at(at(inside)) == at(end)
    assert not found.is_open(at(end))
    assert found.opens_at(at(begin) - second) == at(begin)
    assert found.closed_since(at(end) + second) == at(end)


def test_windows_that_touch_are_one() -> None:
    found = parse("mon,tue 00:00-24:00")
    assert found.closes_at(at("2026-11-23 05:00")) == at("2026-11-25 00:00")
    always = parse("daily 00:00-24:00")
    assert always.closes_at(at("2026-11-23 05:00")) is None
    assert always.opens_at(at("2026-11-23 05:00")) is None


def test_a_window_in_the_hour_that_is_skipped_is_the_next_weeks() -> None:
    found = parse("sun 2:30-3:30 America/New_York")
    for moment in ("2027-03-08 00:00", "2027-03-14 07:15", "2027-03-19 00:00"):
        assert not found.is_open(at(moment))
        assert found.opens_at(at(moment)) == at("2027-03-21 06:30")
        assert found.closed_since(at(moment)) == at("2027-03-07 08:30")


@given(
    st.sampled_from(["weekdays 9-18", "mon,wed 22-6", "sun 2:30-3:30", "daily 23:59-0:01", "sat 0-24"]),
    st.sampled_from(["UTC", BERLIN, "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]),
    st.datetimes(datetime(2026, 1, 1), datetime(2027, 12, 31)).map(lambda moment: moment.replace(tzinfo=UTC)),  # noqa: DTZ001
)
def test_the_next_change_is_the_next_change(text: str, zone: str, moment: datetime) -> None:
    found = parse(f"{text} {zone}")
    here = found.is_open(moment)
    change = found.closes_at(moment) if here else found.opens_at(moment)
    assert change is not None
    # A week more where the hour of the only window is skipped.
    assert moment < change <= moment + timedelta(days=15)
    assert found.is_open(change) != here
    assert found.is_open(change - timedelta(microseconds=1)) == here
    since = found.closed_since(moment)
    assert (since is None) == here
    assert since is None or not found.is_open(since)
