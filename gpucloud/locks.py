"""Turns of which there is one at a time in the whole platform: an advisory lock of the database's session says so."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection


@contextmanager
def alone(what: str) -> Iterator[bool]:
    """True, and nobody else is at it until the end; False where somebody is. Who dies at it leaves no lock behind."""
    held = _say("pg_try_advisory_lock", what)
    try:
        yield held
    finally:
        if held:
            _say("pg_advisory_unlock", what)


def serialize_transaction(what: str) -> None:
    """Wait for other transactions that serialize on `what`, and make later ones wait until this one ends.

    For limits that are counted over rows and then written: the next transaction counts what this one wrote.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [number_of(what)])


def number_of(what: str) -> int:
    """Its lock's number, for `pg_advisory_lock`."""
    return int.from_bytes(hashlib.sha256(f"gpucloud:{what}".encode()).digest()[:8], signed=True)


def _say(function: str, what: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {function}(%s)", [number_of(what)])
        return bool(cursor.fetchone()[0])
