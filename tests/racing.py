"""Racers: threads with a database connection each, started at one moment.

Connections are kept for the races of later tests. A new backend reads PostgreSQL's catalogs before its first
statements: 64 new ones take three times the processor time of what the racers do.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model
from django.db.utils import Error

# As many as PostgreSQL's default of 100 connections allows for when two processes test at once.
AT_ONCE = 32
# Sessions of racers have this application name: whoever counts a program's sessions leaves them out.
NAME = "racer"
_idle: deque[BaseDatabaseWrapper] = deque()


def _connected() -> BaseDatabaseWrapper:
    """Give this thread a connection that an earlier racer left, or a new one."""
    try:
        kept = _idle.pop()
    except IndexError:
        kept = connections.create_connection("default")
        # It is handed from thread to thread, and never used by two at once.
        kept.inc_thread_sharing()
    if kept.connection is None or not kept.is_usable():
        kept.close()
        with kept.cursor() as cursor:
            cursor.execute("SELECT set_config('application_name', %s, false)", [NAME])
    connections["default"] = kept
    return kept


def _leave(kept: BaseDatabaseWrapper, result: Any) -> None:
    """Keep a connection for the next racer, unless its racer failed in the database."""
    if isinstance(result, Error) or kept.connection is None or kept.in_atomic_block or len(_idle) >= AT_ONCE:
        kept.close()
    else:
        _idle.append(kept)


def close_connections() -> None:
    """Close what is kept: before the database goes."""
    while _idle:
        _idle.pop().close()


def race(racers: list[Callable[[], Any]], *, at_once: int = AT_ONCE) -> list[Any]:
    """Run all at once, each in a thread with a connection of its own; return results or exceptions, in order."""
    gate = threading.Barrier(min(len(racers), at_once))

    def run(number: int, racer: Callable[[], Any]) -> Any:
        kept, result = _connected(), None
        try:
            if number < gate.parties:
                gate.wait(timeout=30)
            result = racer()
        except Exception as error:  # noqa: BLE001 - the outcome of a racer is what the test is about
            result = error
        finally:
            _leave(kept, result)
        return result

    with ThreadPoolExecutor(gate.parties) as pool:
        return list(pool.map(run, range(len(racers)), racers))


def outcomes(results: list[object]) -> Counter[str]:
    """Count results by type."""
    return Counter(type(result).__name__ for result in results)


@contextmanager
def without_constraint(model: type[Model], name: str) -> Iterator[None]:
    """Drop a constraint of the model's table; its rows are removed at the end, as they may violate it."""
    table = model._meta.db_table
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = %s", [name])
        definition = cursor.fetchone()[0]
        cursor.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
        try:
            yield
        finally:
            model._default_manager.all().delete()
            cursor.execute(f"ALTER TABLE {table} ADD CONSTRAINT {name} {definition}")
