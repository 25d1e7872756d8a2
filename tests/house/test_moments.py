"""Timestamps are read from the database as Django reads them, only faster."""

from datetime import UTC, datetime

import pytest
from django.db import DataError, connection
from django.db.backends.postgresql.psycopg_any import BaseTzLoader

from gpucloud.fastpath.database.base import Moments

pytestmark = pytest.mark.django_db


def read(text: str) -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s::timestamptz", [text])
        row = cursor.fetchone()
    assert row is not None
    moment: datetime = row[0]
    return moment


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-22 18:49:54.249458+00", datetime(2026, 11, 22, 18, 49, 54, 249458, UTC)),
        ("2026-11-22 18:49:54.2+00", datetime(2026, 11, 22, 18, 49, 54, 200000, UTC)),
        ("2026-11-22 18:49:54+05:30", datetime(2026, 11, 22, 13, 19, 54, 0, UTC)),
        ("0001-01-01 00:00:00+00", datetime(1, 1, 1, tzinfo=UTC)),
        ("9999-12-31 23:59:59.999999+00", datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)),
    ],
)
def test_a_moment_is_what_was_written(text: str, moment: datetime) -> None:
    assert read(text) == moment
    assert read(text).tzinfo is UTC


@pytest.mark.parametrize("text", ["infinity", "10000-01-01 00:00:00+00", "0001-01-01 00:00:00+00 BC"])
def test_what_python_has_no_moment_for_is_refused_as_before(text: str) -> None:
    with pytest.raises(DataError):
        read(text)


def test_in_another_zone_it_is_djangos_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load(self: object, data: object) -> datetime:
        asked.append(str(data, "ascii"))  # type: ignore[call-overload]
        return datetime(2026, 11, 22, 18, tzinfo=UTC)

    monkeypatch.setattr(BaseTzLoader, "load", load)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL TIME ZONE 'Asia/Taipei'")
    assert read("2026-11-22 18:00:00+00").hour == 18
    assert asked == ["2026-11-23 02:00:00+08"]


def test_every_connection_reads_so() -> None:
    with connection.cursor() as cursor:
        assert cursor.connection.adapters.get_loader(1184, 0).__name__ == Moments.__name__
