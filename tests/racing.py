"""Racers: threads with a database connection each, started at one moment."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from django.db import connection
from django.db.models import Model

# As many as PostgreSQL's default of 100 connections allows for when two processes test at once.
AT_ONCE = 32


def race(racers: list[Callable[[], Any]], *, at_once: int = AT_ONCE) -> list[Any]:
    """Run all at once, each in a thread with a connection of its own; return results or exceptions, in order."""
    gate = threading.Barrier(min(len(racers), at_once))

    def run(number: int, racer: Callable[[], Any]) -> Any:
        try:
            connection.ensure_connection()
            if number < gate.parties:
                gate.wait(timeout=30)
            return racer()
        except Exception as error:  # noqa: BLE001 - the outcome of a racer is what the test is about
            return error
        finally:
            connection.close()

    with ThreadPoolExecutor(gate.parties) as pool:
        return list(pool.map(run, range(len(racers)), racers))


def outcomes(results: list[object]) -> Counter[str]:
    """Count results by type."""
    return Counter(type(result).__name__ for result in results)


@contextmanager
def without_constraint(model: type[Model], name: str) -> Iterator[None]:
    """Drop a constraint of the model's table; its rows are removed at the end, as they may violate it."""
    table = model._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = %s", [name])
        definition = cursor.fetchone()[0]
        cursor.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
        try:
            yield
        finally:
            model._default_manager.all().delete()
            cursor.execute(f"ALTER TABLE {table} ADD CONSTRAINT {name} {definition}")
