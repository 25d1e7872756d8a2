"""What the database says has changed (migration 0009), and the one session on which a scheduler hears it and acts.

A scheduler listens, holds its pools' locks and commits on the same session. A session dies as a whole: who can still
commit still leads, and has missed no notice. A new session knows nothing and reads everything anew.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from django.db import connection

from apps.quotas.models import Pool
from apps.scheduling.events import ROUNDS_CHANNEL
from apps.scheduling.services.failures import NoLongerLeader
from gpucloud.locks import number_of

# Ids by what they are of: `gpu`, `node`, `claim`, `tenant`, `cohort` or `pool`.
Notices = Mapping[str, set[str]]


class Session:
    """Listens from the start on. Made anew after any error of the database."""

    def __init__(self) -> None:
        connection.close()
        connection.ensure_connection()
        self._link: Any = connection.connection
        self._pid = self._link.info.backend_pid
        # Notices of one's own commits that are still to come, and say nothing new.
        self._own: set[str] = set()
        with connection.cursor() as cursor:
            cursor.execute(f"LISTEN {ROUNDS_CHANNEL}")

    def fence(self) -> None:
        """Within a transaction: raises NoLongerLeader where it is not one of this session.

        Django opens another session by itself where the old one broke. That one holds no lock.
        """
        if connection.connection is not self._link:
            raise NoLongerLeader

    def leads(self, pool: Pool) -> bool:
        """Take the pool's lock or keep it. One's own lock would be counted twice, so ask first."""
        number = _lock_of(pool)
        held = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND objsubid = 1 "
        held += "AND ((classid::bigint << 32) | objid::bigint) = %s"
        with connection.cursor() as cursor:
            self.fence()
            if cursor.execute(held, [number]).fetchone():
                return True
            row = cursor.execute("SELECT pg_try_advisory_lock(%s)", [number]).fetchone()
        return bool(row and row[0])

    def leave(self, pool: Pool) -> None:
        """Lead the pool no longer."""
        with connection.cursor() as cursor:
            self.fence()
            cursor.execute("SELECT pg_advisory_unlock(%s)", [_lock_of(pool)])

    def receive(self, *, seconds: float = 0) -> Notices:
        """What has changed since it was asked last; waits so long for the first notice."""
        self.fence()
        found = list(self._link.notifies(timeout=seconds, stop_after=1))
        if found:
            # What else has come meanwhile belongs to the same round.
            found += self._link.notifies(timeout=0)
        return by_kind(item.payload for item in found if not (item.pid == self._pid and self._is_own(item.payload)))

    def ignore(self, payloads: Iterable[str]) -> None:
        """These were just committed here, and are known."""
        self._own.update(payloads)

    def _is_own(self, payload: str) -> bool:
        known = payload in self._own
        self._own.discard(payload)
        return known


def _lock_of(pool: Pool) -> int:
    return number_of(f"scheduler:{pool.name}")


def by_kind(payloads: Iterable[str]) -> Notices:
    """Notices by what they name."""
    found: dict[str, set[str]] = defaultdict(set)
    for payload in payloads:
        kind, _, name = payload.partition(" ")
        found[kind].add(name)
    return found
