"""Who watches the clusters: the one of `manage.py clusters` that leads, by a session's advisory lock."""

import hashlib

from django.db import connection

LOCK = int.from_bytes(hashlib.sha256(b"gpucloud:clusters").digest()[:8], signed=True)
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


def lead() -> bool:
    """Take the lock for this connection, until it ends; False where another one has it."""
    with connection.cursor() as cursor:
        row = cursor.execute("SELECT pg_try_advisory_lock(%s)", [LOCK]).fetchone()
    return bool(row and row[0])


def is_led() -> bool:
    """Whether anybody watches now."""
    with connection.cursor() as cursor:
        row = cursor.execute(HELD, {"lock": LOCK}).fetchone()
    return bool(row and row[0])
