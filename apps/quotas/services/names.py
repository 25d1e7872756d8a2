"""Names and keys that one object has: the database decides who, and the error says so."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.db import IntegrityError, transaction
from psycopg.errors import UniqueViolation

from gpucloud.errors import Conflict


class NameTaken(Conflict, code="name-taken", title="The name is taken"):
    """Another object has this name."""


@contextmanager
def refuse_taken(describe: Callable[[], NameTaken]) -> Iterator[None]:
    """Run an insert in a savepoint; if its unique key is taken, raise what `describe` returns.

    `describe` runs after the savepoint, so it can read the row that has the key. Other constraints raise their error.
    """
    try:
        with transaction.atomic():
            yield
    except IntegrityError as error:
        if not isinstance(error.__cause__, UniqueViolation):
            raise
        raise describe() from error
