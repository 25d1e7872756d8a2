"""Cursors that send statements to PostgreSQL with bound values, as far as the protocol allows."""

from typing import Any

from django.db.backends.postgresql.base import ServerBindingCursor
from psycopg import ClientCursor

# The protocol counts values with 16 bits. Bulk inserts and lists of keys may have more.
MOST_VALUES = 2**16 - 1


class BindingCursor(ServerBindingCursor):
    """Django's cursor, which also executes statements with more values than the protocol allows.

    These values are inlined in the statement's text.
    """

    def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        """Execute a statement, as psycopg's cursor does."""
        if params is not None and len(params) > MOST_VALUES:
            query, params = ClientCursor(self.connection).mogrify(query, params), None  # type: ignore[attr-defined]
        return super().execute(query, params, **options)  # type: ignore[misc]
