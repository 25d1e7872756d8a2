"""Transactions whose locks end before their commit is on disk; the caller goes on when it is.

PostgreSQL frees locks after a commit is on disk, and on the standby where replication is synchronous. Posts of one
tenant lock the rows of its quotas, so each would wait for the disk of all before it; and posts of all tenants send a
notice to the scheduler, for which PostgreSQL holds one lock of the database until the commit is on disk. Here the
commit is written without waiting (`synchronous_commit = off`), and a second, empty transaction is waited for in the
usual way: the log is one sequence, so what was written before is then at least as safe. Transactions that wait at the
same time share one write to the disk. `docs/decisions/0141-early-unlocking.md` says what others can see meanwhile.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from django.db import DataError, OperationalError, connection, transaction

BEGIN = "SELECT set_config('synchronous_commit', 'off', true), pg_current_xact_id()::text, pg_postmaster_start_time()"
# Behind a pooler, the statement after a commit may go to another server, which must know the transaction.
FLUSH = "SELECT pg_logical_emit_message(true, 'gpucloud', ''), pg_xact_status(%s::xid8), pg_postmaster_start_time()"


class Lost(OperationalError):
    """The server of the commit is gone, and another one does not have it, or may not have it."""


@dataclass
class Ending:
    """The end of a transaction: steps that lock what others wait for, run right before the commit."""

    steps: list[Callable[[], None]] = field(default_factory=list)


@contextmanager
def ending_early() -> Iterator[Ending]:
    """Run the block in a transaction, its last steps, and the commit; return when the commit is durable.

    Raises what the block and its steps raise. After an OperationalError at the end nobody knows whether the commit
    happened, as after any commit.
    """
    ending = Ending()
    outermost = not connection.in_atomic_block
    with transaction.atomic():
        begun = _fetch(BEGIN) if outermost else ()
        yield ending
        for step in ending.steps:
            step()
    if outermost:
        try:
            _, status, server = _fetch(FLUSH, begun[1])
        except DataError as error:
            # Another server, for which the transaction "is in the future".
            raise Lost("the database was replaced during the commit") from error
        if (status, server) != ("committed", begun[2]):
            raise Lost("the database was replaced during the commit")


def _fetch(statement: str, *values: str) -> tuple[Any, ...]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        row: tuple[Any, ...] = cursor.fetchone()
        return row
