"""Notices of changes from the database (migration 0009), and the session that receives them and commits.

A scheduler listens, holds its pools' locks and commits on the same session. A session dies as a whole: a scheduler that
can still commit still leads, and has missed no notice. A new session knows nothing and reads everything anew.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from django.db import connection

from apps.quotas.models import Pool
from apps.scheduling.events import ROUNDS_CHANNEL
from apps.scheduling.services.failures import NoLongerLeader
from gpucloud.locks import number_of

# The server ends the session, and frees its locks, soon after the scheduler's end: during a statement, and also if its
# machine is gone without a word. On a Unix socket, keepalives are ignored.
ENDS_SOON = """
    SET client_connection_check_interval = '1s';
    SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3;
    SET tcp_user_timeout = '11s';
"""
# Ids by kind: `gpu`, `node`, `claim`, `tenant`, `cohort` or `pool`.
Notices = Mapping[str, set[str]]


class Session:
    """A database session that listens from its start. It is made anew after any error of the database."""

    def __init__(self) -> None:
        connection.close()
        connection.ensure_connection()
        self._link: Any = connection.connection
        with connection.cursor() as cursor:
            cursor.execute(ENDS_SOON)
            cursor.execute(f"LISTEN {ROUNDS_CHANNEL}")

    def fence(self) -> None:
        """Raise NoLongerLeader if the current transaction is not one of this session.

        Django opens another session by itself if the old one broke. That one holds no lock.
        """
        if connection.connection is not self._link:
            raise NoLongerLeader

    def leads(self, pool: Pool) -> bool:
        """Take the pool's lock or keep it; return False if another session has it.

        A lock that is taken twice on a session is counted twice, so `pg_locks` is read first.
        """
        number = _lock_of(pool)
        held = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND objsubid = 1 "
        held += "AND ((classid::bigint << 32) | objid::bigint) = %s"
        with connection.cursor() as cursor:
            self.fence()
            if cursor.execute(held, [number]).fetchone():
                return True
            row = cursor.execute("SELECT pg_try_advisory_lock(%s)", [number]).fetchone()
        return bool(row and row[0])

    def is_any_free(self, pools: Iterable[Pool]) -> bool:
        """Return True if nobody leads one of these pools; one query for all."""
        numbers = [_lock_of(pool) for pool in pools]
        held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1 "
        held += "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
        held += "AND ((classid::bigint << 32) | objid::bigint) = ANY(%s)"
        with connection.cursor() as cursor:
            self.fence()
            row = cursor.execute(held, [numbers]).fetchone()
        return bool(row and row[0] < len(numbers))

    def leave(self, pool: Pool) -> None:
        """Release the pool's lock."""
        with connection.cursor() as cursor:
            self.fence()
            cursor.execute("SELECT pg_advisory_unlock(%s)", [_lock_of(pool)])

    def receive(self, *, seconds: float = 0) -> Notices:
        """Return the changes since the last call; wait up to `seconds` for the first notice."""
        self.fence()
        found = list(self._link.notifies(timeout=seconds, stop_after=1))
        if found:
            # Notices that came meanwhile belong to the same round.
            found += self._link.notifies(timeout=0)
        return by_kind(item.payload for item in found)


def _lock_of(pool: Pool) -> int:
    return number_of(f"scheduler:{pool.name}")


def by_kind(payloads: Iterable[str]) -> Notices:
    """Return the ids that notices name, by kind."""
    found: dict[str, set[str]] = defaultdict(set)
    for payload in payloads:
        kind, _, name = payload.partition(" ")
        found[kind].add(name)
    return found
