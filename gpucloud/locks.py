"""Advisory locks of PostgreSQL, each under a name."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection


@contextmanager
def exclusive(name: str) -> Iterator[bool]:
    """Hold a PostgreSQL advisory lock; yield False if another session has it.

    The lock belongs to the database session: it is freed too if this process dies.
    """
    is_held = _call("pg_try_advisory_lock", name)
    try:
        yield is_held
    finally:
        if is_held:
            _call("pg_advisory_unlock", name)


def serialize_transaction(name: str) -> None:
    """Wait for other transactions that serialize on this name, and make later ones wait until this one ends.

    For limits that are counted over rows and then written: the next transaction counts what this one wrote.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [number_of(name)])


def number_of(name: str) -> int:
    """Return the lock's number, for `pg_advisory_lock`."""
    return int.from_bytes(hashlib.sha256(f"gpucloud:{name}".encode()).digest()[:8], signed=True)


def _call(function: str, name: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {function}(%s)", [number_of(name)])
        return bool(cursor.fetchone()[0])
