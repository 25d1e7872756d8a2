"""`manage.py scheduler`: decides rounds, long-lived, one leader per pool.

Woken by NOTIFY from whatever made or freed something. A session advisory lock per pool makes one of several schedulers
its leader; the lock falls with the session, so another takes over when a leader dies. A round is repeated every ten
seconds without being woken: a node's silence sends no notice.
"""

import hashlib
import logging
import signal
import time
from typing import Any

import psycopg
from django.core.management.base import BaseCommand
from django.db import DatabaseError, close_old_connections, connection

from apps.quotas.models import Pool
from apps.scheduling.events import ROUNDS_CHANNEL
from apps.scheduling.services.rounds import run_round

logger = logging.getLogger(__name__)

LOOK_AGAIN_SECONDS = 10.0
# How long a stop signal may go unnoticed.
NOTICE_SECONDS = 0.5


class Command(BaseCommand):
    """The scheduler."""

    help = "Place waiting claims: runs until it is told to stop; start as many as you like, one leads each pool."

    def handle(self, *args: Any, **options: Any) -> None:
        """Serve until SIGTERM or SIGINT; outlive restarts of the database."""
        self.stopping = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        logger.info("scheduler started")
        while not self.stopping:
            try:
                self._serve()
            except (psycopg.Error, DatabaseError) as error:
                logger.warning("database lost, trying again in a second: %s", error)
                close_old_connections()
                time.sleep(1)
        logger.info("scheduler stopped")

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def _serve(self) -> None:
        parameters = connection.get_connection_params()
        listener: psycopg.Connection[Any]
        with psycopg.connect(**{**parameters, "autocommit": True, "cursor_factory": None}) as listener:
            listener.execute(f"LISTEN {ROUNDS_CHANNEL}")
            next_look = 0.0
            while not self.stopping:
                if time.monotonic() >= next_look:
                    self._rounds(listener, list(Pool.objects.all()))
                    next_look = time.monotonic() + LOOK_AGAIN_SECONDS
                woken = {notice.payload for notice in listener.notifies(timeout=NOTICE_SECONDS, stop_after=1)}
                if woken:
                    # What else has come meanwhile belongs to the same round.
                    woken |= {notice.payload for notice in listener.notifies(timeout=0)}
                    self._rounds(listener, list(Pool.objects.filter(name__in=woken)))

    def _rounds(self, listener: psycopg.Connection[Any], pools: list[Pool]) -> None:
        for pool in pools:
            if not _leads(listener, pool):
                continue
            done = run_round(pool)
            if done:
                logger.info(
                    "round %s of pool %s: %s considered, %s placed, %.1f ms",
                    done.pk,
                    pool.name,
                    done.considered,
                    done.placed,
                    done.duration_us / 1000,
                )


def _leads(listener: psycopg.Connection[Any], pool: Pool) -> bool:
    """Take or keep the pool's lock on the listening session. One's own lock would be counted twice, so ask first."""
    digest = hashlib.sha256(f"gpucloud:scheduler:{pool.name}".encode()).digest()
    number = int.from_bytes(digest[:8], signed=True)
    held = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND objsubid = 1 "
    held += "AND ((classid::bigint << 32) | objid::bigint) = %s"
    if listener.execute(held, [number]).fetchone():
        return True
    row = listener.execute("SELECT pg_try_advisory_lock(%s)", [number]).fetchone()
    return bool(row and row[0])
