"""Who watches the clusters, and who their SharePods: the one of a command that leads, by a session's advisory lock."""

from django.db import connection

from gpucloud.locks import number_of

CLUSTERS, SHAREPODS = number_of("clusters"), number_of("sharepods")
# A lock by one number of 64 bits is listed by its halves.
HELD = """
    SELECT EXISTS (
        SELECT FROM pg_locks
        WHERE locktype = 'advisory' AND objsubid = 1 AND granted
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND classid::bigint = (%(lock)s::bigint >> 32) & 4294967295
            AND objid::bigint = %(lock)s::bigint & 4294967295
    )
"""


def lead(lock: int = CLUSTERS) -> bool:
    """Take the lock for this connection, until it ends; False where another one has it."""
    with connection.cursor() as cursor:
        row = cursor.execute("SELECT pg_try_advisory_lock(%s)", [lock]).fetchone()
    return bool(row and row[0])


def is_led(lock: int = CLUSTERS) -> bool:
    """Whether anybody watches now."""
    with connection.cursor() as cursor:
        row = cursor.execute(HELD, {"lock": lock}).fetchone()
    return bool(row and row[0])
