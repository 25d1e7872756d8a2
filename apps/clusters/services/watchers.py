"""Leadership of the commands that watch clusters and SharePods, by a session advisory lock."""

from django.db import connection

from gpucloud.locks import number_of

CLUSTERS, SHAREPODS = number_of("clusters"), number_of("sharepods")
# pg_locks lists a lock with a 64-bit number as two halves.
IS_LOCKED = """
    SELECT EXISTS (
        SELECT FROM pg_locks
        WHERE locktype = 'advisory' AND objsubid = 1 AND granted
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND classid::bigint = (%(lock)s::bigint >> 32) & 4294967295
            AND objid::bigint = %(lock)s::bigint & 4294967295
    )
"""


def lead(lock: int = CLUSTERS) -> bool:
    """Take the lock for this connection until it ends; return False if another one has it."""
    with connection.cursor() as cursor:
        row = cursor.execute("SELECT pg_try_advisory_lock(%s)", [lock]).fetchone()
    return bool(row and row[0])


def is_led(lock: int = CLUSTERS) -> bool:
    """Return True if any process watches now."""
    with connection.cursor() as cursor:
        row = cursor.execute(IS_LOCKED, {"lock": lock}).fetchone()
    return bool(row and row[0])
