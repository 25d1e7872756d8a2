"""Partitions by time: made ahead of what comes, dropped as a whole when their time is over.

What falls outside of all of them lies in the table's default partition and is deleted there row by row: there is little
of it.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone

from apps.nodes.services.telemetry import fleet

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
# As many are made ahead: a worker that is away for less than that is not missed.
AHEAD_HOURS = 4
# Whoever makes partitions makes them alone: it waits for nothing else and locks the table for a moment.
LOCK = 0x67706370


@dataclass(frozen=True)
class Table:
    """A partitioned table, the time that one partition holds, and how long it is kept."""

    name: str
    each: timedelta
    kept: timedelta

    def partition(self, begin: datetime) -> str:
        """Its name; it sorts as its time does."""
        return f"{self.name}_{begin:%Y%m%d%H}"

    def bounds(self, moment: datetime) -> tuple[datetime, datetime]:
        """The partition in which a moment lies."""
        epoch = datetime(2000, 1, 1, tzinfo=moment.tzinfo)
        begin = epoch + (moment - epoch) // self.each * self.each
        return begin, begin + self.each


def tables() -> tuple[Table, ...]:
    """All of them."""
    kept = settings
    return (
        Table("nodes_usageframe", HOUR, timedelta(hours=kept.TELEMETRY_RAW_HOURS)),
        Table("nodes_usagetens", DAY, timedelta(days=kept.TELEMETRY_TENS_DAYS)),
        Table("nodes_usageminute", DAY, timedelta(days=kept.TELEMETRY_MINUTES_DAYS)),
        Table("nodes_usagehour", 30 * DAY, timedelta(days=kept.TELEMETRY_HOURS_DAYS)),
        Table("nodes_usageday", 360 * DAY, timedelta(days=kept.TELEMETRY_HOURS_DAYS)),
    )


def keep_up() -> tuple[int, int]:
    """Make what is needed soon, drop what is over; how many of each. May run twice."""
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
        # It needs the whole table for a moment. Behind a long reader everything stored would wait for it: better later.
        cursor.execute("SET LOCAL lock_timeout = '1s'")
        cursor.execute(f"DROP TABLE IF EXISTS {name}")
    return True


@transaction.atomic
def make(table: Table, moment: datetime) -> bool:
    """Make the partition in which a moment lies; False where there is one."""
    begin, end = table.bounds(moment)
    name = table.partition(begin)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
        cursor.execute("SELECT to_regclass(%s)", [name])
        if cursor.fetchone() != (None,):
            return False
        # What came before its partition was made moves into it.
        cursor.execute(f"CREATE TABLE {name} (LIKE {table.name} INCLUDING DEFAULTS)")
        cursor.execute(
            f"WITH early AS (DELETE FROM {table.name}_default WHERE at >= %s AND at < %s RETURNING *) "  # noqa: S608
            f"INSERT INTO {name} SELECT * FROM early",
            [begin, end],
        )
        # No parameters in a definition; both are ours.
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
