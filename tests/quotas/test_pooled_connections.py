"""Connections that lie in the pool while PostgreSQL restarts."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import OperationalError, connection, connections
from django.db.backends.postgresql.base import DatabaseWrapper

IDLE = 5


@pytest.fixture
def opened(transactional_db: None, request: pytest.FixtureRequest) -> Iterator[list[DatabaseWrapper]]:
    """A pool of its own, of as many connections as there are threads here; all of them have been given back."""
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
    """What the pool sees of it: the server hangs up."""
    there = "FROM pg_stat_activity WHERE application_name = 'pooled' AND datname = current_database()"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(pg_terminate_backend(pid)) {there}")
        left = cursor.fetchone()
        assert left == (IDLE,)
        while left != (0,):
            cursor.execute(f"SELECT count(*) {there}")
            left = cursor.fetchone()


def served(threads: list[DatabaseWrapper]) -> int:
    """How many requests, one after another, are answered."""
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


def test_after_a_restart_no_request_is_given_a_dead_connection(opened: list[DatabaseWrapper]) -> None:
    restart()
    assert served(opened) == IDLE


@pytest.mark.parametrize("opened", [DatabaseWrapper], indirect=True, ids=["djangos-own"])
def test_control_without_a_look_at_them_each_dead_connection_fails_a_request(opened: list[DatabaseWrapper]) -> None:
    restart()
    assert served(opened) == 0
