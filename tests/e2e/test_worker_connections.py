"""The database connections of a running worker: its tasks share them."""

import time

import psycopg
import pytest

from deploy.embedded import postgres
from tests.platform import Platform

pytestmark = [pytest.mark.serial, pytest.mark.timeout(180)]

SECONDS = 8.0


def test_tasks_share_connections(platform: Platform) -> None:
    def sessions() -> int:
        row = connection.execute("SELECT sessions FROM pg_stat_database WHERE datname = current_database()").fetchone()
        assert row is not None
        return int(row[0])

    with psycopg.connect(postgres.url(platform.state), autocommit=True) as connection:
        before, begun = sessions(), time.monotonic()
        time.sleep(SECONDS)
        made, took = sessions() - before, time.monotonic() - begun
    # Five tasks run every two seconds, among others.
    assert made < took / 2, f"{made} connections in {took:.0f} s"
