"""How statements go to PostgreSQL: with their values beside them, as far as the protocol carries these."""

from typing import Any

from django.db.backends.postgresql.base import ServerBindingCursor
from psycopg import ClientCursor

# The protocol counts values with 16 bits. Rows written in bulk, and lists of keys, may have more.
MOST_VALUES = 2**16 - 1


class BindingCursor(ServerBindingCursor):
    """Django's, which also takes a statement of more values than go beside it: these go into its text."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        """As psycopg's."""
        if params is not None and len(params) > MOST_VALUES:
            query, params = ClientCursor(self.connection).mogrify(query, params), None  # type: ignore[attr-defined]
        return super().execute(query, params, **options)  # type: ignore[misc]
