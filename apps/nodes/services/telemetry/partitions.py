"""Partitions by time: created ahead, dropped as a whole when they expire.

Rows outside of all partitions are in the table's default partition and deleted there one by one: they are few.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone

from apps.nodes.services.telemetry import fleet

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
# Partitions created ahead: a worker may be away for less than that.
AHEAD_HOURS = 4
# One process at a time creates partitions: it waits for nothing else and locks the table for a moment.
LOCK = 0x67706370


@dataclass(frozen=True)
class Table:
    """A partitioned table with the span and the retention of its partitions."""

    name: str
    each: timedelta
    kept: timedelta

    def partition(self, begin: datetime) -> str:
        """Return the partition's name; names sort by time."""
        return f"{self.name}_{begin:%Y%m%d%H}"

    def bounds(self, moment: datetime) -> tuple[datetime, datetime]:
        """Return the bounds of the moment's partition."""
        epoch = datetime(2000, 1, 1, tzinfo=moment.tzinfo)
        begin = epoch + (moment - epoch) // self.each * self.each
        return begin, begin + self.each


def tables() -> tuple[Table, ...]:
    """Return all partitioned tables."""
    kept = settings
    return (
        Table("nodes_usageframe", HOUR, timedelta(hours=kept.TELEMETRY_RAW_HOURS)),
        Table("nodes_usagetens", DAY, timedelta(days=kept.TELEMETRY_TENS_DAYS)),
        Table("nodes_usageminute", DAY, timedelta(days=kept.TELEMETRY_MINUTES_DAYS)),
        Table("nodes_usagehour", 30 * DAY, timedelta(days=kept.TELEMETRY_HOURS_DAYS)),
        Table("nodes_usageday", 360 * DAY, timedelta(days=kept.TELEMETRY_HOURS_DAYS)),
    )


def keep_up() -> tuple[int, int]:
    """Create upcoming partitions, drop expired ones; return the number of each. May run twice."""
    made = dropped = 0
    now = timezone.now()
    for table in tables():
        made += sum(make(table, now + hour * HOUR) for hour in range(AHEAD_HOURS + 1))
        dropped += sum(_drop(name) for name in _over(table, now))
        with connection.cursor() as cursor:
            cursor.execute(f"DELETE FROM {table.name}_default WHERE at < %s", [now - table.kept])  # noqa: S608 - ours
    fleet.forget(now - timedelta(days=settings.TELEMETRY_MINUTES_DAYS))
    return made, dropped


@transaction.atomic
def _drop(name: str) -> bool:
    with connection.cursor() as cursor:
        # It locks the whole table for a moment. Behind a long reader it would block all writers: better retry later.
        cursor.execute("SET LOCAL lock_timeout = '1s'")
        cursor.execute(f"DROP TABLE IF EXISTS {name}")
    return True


@transaction.atomic
def make(table: Table, moment: datetime) -> bool:
    """Create the moment's partition; return False if it exists."""
    begin, end = table.bounds(moment)
    name = table.partition(begin)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
        cursor.execute("SELECT to_regclass(%s)", [name])
        if cursor.fetchone() != (None,):
            return False
        # Move rows that came before their partition existed.
        cursor.execute(f"CREATE TABLE {name} (LIKE {table.name} INCLUDING DEFAULTS)")
        cursor.execute(
            f"WITH early AS (DELETE FROM {table.name}_default WHERE at >= %s AND at < %s RETURNING *) "  # noqa: S608
            f"INSERT INTO {name} SELECT * FROM early",
            [begin, end],
        )
        # A definition cannot have parameters; both values are ours.
        cursor.execute(
            f"ALTER TABLE {table.name} ATTACH PARTITION {name} "
            f"FOR VALUES FROM ('{begin.isoformat()}') TO ('{end.isoformat()}')"
        )
    return True


def _over(table: Table, now: datetime) -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = %s::regclass", [table.name])
        names = {str(name) for (name,) in cursor.fetchall()}
    last = table.bounds(now - table.kept)[0]
    return [name for name in sorted(names) if not name.endswith("_default") and name < table.partition(last)]
