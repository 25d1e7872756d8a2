"""Django's PostgreSQL back end with a cheap check of pooled connections and a fast reader of timestamps.

After a restart of the server all pooled connections are dead, and each would fail the request that gets it. psycopg's
own check (`CONN_HEALTH_CHECKS`) queries the server before each request (0.2 ms) and doubles its wait after each dead
connection: with eight the first request failed after 30 s. Here the socket is polled, in microseconds: the server sends
nothing to an idle connection except its end. After one dead connection all are checked at once.

Each of our rows has two timestamps or more, and Django's way to read one (psycopg's in Python, a regular expression for
any time zone) takes 10 µs: a third of the time of a fleet page.
"""

import select
from datetime import UTC, datetime
from typing import Any

from django.db.backends.postgresql import base
from django.db.backends.postgresql.psycopg_any import BaseTzLoader
from psycopg import OperationalError
from psycopg_pool import ConnectionPool, PoolTimeout

from gpucloud.fastpath.database.outages import Outages

_outages = Outages()


class DatabaseWrapper(base.DatabaseWrapper):
    """One thread's connection."""

    def get_connection_params(self) -> dict[str, Any]:
        """Return Django's parameters with our reader of timestamps."""
        parameters: dict[str, Any] = super().get_connection_params()
        if self.timezone == UTC:
            parameters["context"].register_loader("timestamptz", Moments)
        return parameters

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        """Return a live connection, from the pool if there is one.

        Raises OperationalError.
        """
        if not self.pool:
            return super().get_new_connection(conn_params)
        _outages.check(lambda: self.Database.connect(**conn_params))
        try:
            connection = super().get_new_connection(conn_params)
            while _over(connection):
                self.pool.putconn(connection)
                self.pool.check()
                connection = super().get_new_connection(conn_params)
        except PoolTimeout:
            _outages.begin()
            raise
        return connection


class Moments(BaseTzLoader):  # type: ignore[misc]
    """A reader of timestamps for sessions in UTC: Python's own parser reads PostgreSQL's format there."""

    timezone = UTC

    def load(self, data: Any) -> datetime:
        """Parse a timestamp; leave every other value to Django's reader (which rejects infinity)."""
        try:
            moment = datetime.fromisoformat(str(data, "ascii"))
        except ValueError:
            moment = None
        if moment is not None and moment.tzinfo is UTC:
            return moment
        other: datetime = super().load(data)
        return other


def _over(connection: Any) -> bool:
    """Return True if the server has closed the connection."""
    socket = select.poll()
    try:
        socket.register(connection.fileno(), select.POLLIN)
        if socket.poll(0):
            # Rarely the data is the notice of a changed setting.
            ConnectionPool.check_connection(connection)
    except OperationalError:
        return True
    return False
