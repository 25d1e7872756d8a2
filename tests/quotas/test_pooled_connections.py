"""Pooled connections during a restart of PostgreSQL."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import OperationalError, connection, connections
from django.db.backends.postgresql.base import DatabaseWrapper

IDLE = 5


@pytest.fixture
def open_pool(transactional_db: None, request: pytest.FixtureRequest) -> Iterator[list[DatabaseWrapper]]:
    """Return a pool of its own, with as many connections as threads here; all of them are idle."""
    facts: dict[str, Any] = dict(connection.settings_dict)
    pool = {"min_size": 1, "max_size": IDLE, "timeout": 10}
    facts["OPTIONS"] = {**facts["OPTIONS"], "application_name": "pooled", "pool": pool}
    engine: Any = getattr(request, "param", connections["default"].__class__)
    threads: list[DatabaseWrapper] = [engine(facts, alias="pooled") for _ in range(IDLE)]
    for thread in threads:
        thread.connect()
    for thread in threads:
        thread.close()
    yield threads
    threads[0].close_pool()


def restart() -> None:
    """Hang up, as the pool sees a restart."""
    there = "FROM pg_stat_activity WHERE application_name = 'pooled' AND datname = current_database()"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(pg_terminate_backend(pid)) {there}")
        left = cursor.fetchone()
        assert left == (IDLE,)
        while left != (0,):
            cursor.execute(f"SELECT count(*) {there}")
            left = cursor.fetchone()


def count_answered(threads: list[DatabaseWrapper]) -> int:
    """Return how many sequential requests are answered."""
    done = 0
    for thread in threads:
        try:
            with thread.cursor() as cursor:
                cursor.execute("SELECT 1")
            done += 1
        except OperationalError:
            pass
        finally:
            thread.close()
    return done


def test_after_a_restart_no_request_is_given_a_dead_connection(open_pool: list[DatabaseWrapper]) -> None:
    restart()
    assert count_answered(open_pool) == IDLE


@pytest.mark.parametrize("open_pool", [DatabaseWrapper], indirect=True, ids=["djangos-own"])
def test_control_without_a_look_at_them_each_dead_connection_fails_a_request(open_pool: list[DatabaseWrapper]) -> None:
    restart()
    assert count_answered(open_pool) == 0
