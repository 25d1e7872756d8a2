"""`manage.py scheduler`: decides rounds, long-lived, one leader per pool.

Woken by what the database says has changed (`services.notices`). A session advisory lock per pool makes one of several
schedulers its leader; it listens, leads and commits on one session, so a leader that lost its lock cannot commit.

What raises over one pool is that pool's: it is set aside for a while, longer each time, and then read anew, here or by
another scheduler. Over which claims something raised is known of most, and then only these are set aside (`rounds`).
"""

import logging
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import BaseCommand
from django.db import connection
from django.utils import timezone

from apps.quotas.models import Pool
from apps.scheduling.core.placement import native
from apps.scheduling.core.placement.backends import chosen
from apps.scheduling.models import Round
from apps.scheduling.services.cycles.notices import Session
from apps.scheduling.services.cycles.pool_cache import PoolCache
from apps.scheduling.services.cycles.rounds import rounds
from apps.scheduling.services.failures import SESSION_LOST, Backoff
from gpucloud import counters

logger = logging.getLogger(__name__)

BACK_ENDS = {
    "c": "the C kernel",
    "numpy": f"numpy, more slowly: the C kernel is not built, or of other sources (make -C {native.SOURCES})",
}

# How long a stop signal may go unnoticed.
NOTICE_SECONDS = 0.5
# That a leader died sends no notice either: so long may a pool be without one.
LEAD_SECONDS = 1.0
# A node is lost after ten seconds of silence, which sends no notice. Until it is noticed here a claim may be decided
# onto the node, but not committed: the commit looks at the node again.
SILENCE_SECONDS = 5.0
# Notices of one session are not lost. This is for what nobody has thought of; it is logged where it finds something.
COMPARE_SECONDS = 60.0
# A comparison that found something waits so long for a notice of it. It is rare, and nobody is placed meanwhile.
LATE_NOTICE_SECONDS = 2.0
# How long a pool over which something raised is left alone, at first and at last.
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 1.0, 60.0


# A pool's rounds are over.
OVER = Round()


class Every:
    """True once in so many seconds, for the first time in `first`."""

    def __init__(self, seconds: float, *, first: float = 0.0) -> None:
        self._seconds, self._next = seconds, time.monotonic() + first

    def is_due(self) -> bool:
        """Whether it is time again."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._seconds
        return True


class Command(BaseCommand):
    """The scheduler."""

    help = "Place waiting claims: runs until it is told to stop; start as many as you like, one leads each pool."

    stopping = unfinished = False

    def handle(self, *args: Any, **options: Any) -> None:
        """Serve until SIGTERM or SIGINT; outlive restarts of the database."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        logger.info("scheduler started; placement by %s", BACK_ENDS[chosen("auto")])
        self.backoff = Backoff(first_seconds=FIRST_PAUSE_SECONDS, most_seconds=LAST_PAUSE_SECONDS)
        while not self.stopping:
            try:
                self._serve()
            except SESSION_LOST as error:
                logger.warning("database session lost, trying again in a second: %s", error)
                time.sleep(1)
            except Exception:
                # Of no pool alone: all is read anew on another session.
                until = self.backoff.record_failure(None, now=time.monotonic())
                logger.exception("the scheduler failed and begins anew in %.0f s", until - time.monotonic())
                while time.monotonic() < until and not self.stopping:
                    time.sleep(NOTICE_SECONDS)
        connection.close()
        logger.info("scheduler stopped")

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def _serve(self) -> None:
        self.session, self.caches, self.unfinished = Session(), dict[int, PoolCache](), False
        lead, silence, compare = (
            Every(LEAD_SECONDS),
            Every(SILENCE_SECONDS),
            Every(COMPARE_SECONDS, first=COMPARE_SECONDS),
        )
        while not self.stopping:
            if lead.is_due():
                self._lead()
            if silence.is_due():
                for key, cache in list(self.caches.items()):
                    with self._isolated(key):
                        cache.refresh_silent_nodes()
            if compare.is_due():
                self._compare()
            behind, self.unfinished = self.unfinished, False
            received, now = self._receive(seconds=0 if behind else NOTICE_SECONDS), timezone.now().timestamp()
            if behind or received or any(cache.has_due_claims(now=now) for cache in self.caches.values()):
                self._rounds(list(self.caches), in_full=False)

    def _receive(self, *, seconds: float = 0) -> bool:
        notices = self.session.receive(seconds=seconds)
        if notices:
            for key, cache in list(self.caches.items()):
                with self._isolated(key):
                    cache.apply(notices)
        return bool(notices)

    def _lead(self) -> None:
        """Lead what nobody leads; start with a cache of it, and with what has waited there."""
        pools = {pool.pk: pool for pool in Pool.objects.order_by("pk")}
        for key in self.caches.keys() - pools.keys():
            del self.caches[key]
        led = []
        for key, pool in pools.items():
            if key in self.caches or self.backoff.is_paused(key, now=time.monotonic()) or not self.session.leads(pool):
                continue
            with self._isolated(key, pool):
                self.caches[key] = PoolCache(pool)
                logger.info("leading pool %s", pool.name)
                led.append(key)
        self._rounds(led, in_full=True)

    @contextmanager
    def _isolated(self, key: int, pool: Pool | None = None) -> Iterator[None]:
        """What raises within, but for a lost session, sets this pool aside; another scheduler may lead it meanwhile."""
        try:
            yield
        except SESSION_LOST:
            raise
        except Exception:
            cache = self.caches.pop(key, None)
            now = time.monotonic()
            until = self.backoff.record_failure(key, now=now)
            pool = cache.pool if cache is not None else pool
            logger.exception("pool %s failed: it is set aside for %.0f s", pool, until - now)
            if pool is not None:
                counters.POOLS_SET_ASIDE.add(pool.name)
                self.session.leave(pool)

    def _compare(self) -> None:
        for key, cache in list(self.caches.items()):
            self._receive()
            with self._isolated(key):
                # Only silence sends no notice: on a busy machine a node falls silent between two looks for it.
                cache.refresh_silent_nodes()
                differed = cache.compare()
                # Where notices come now, they may be what the comparison has found: a change can be read before the
                # listening session has been told of it, on a busy machine long before.
                if differed and not self._receive(seconds=LATE_NOTICE_SECONDS):
                    logger.warning("pool %s: %s rows were not as they were kept", cache.pool.name, differed)
                cache.forget_refusals()
        self._rounds(list(self.caches), in_full=True)

    def _rounds(self, caches: Iterable[int], *, in_full: bool) -> None:
        """Each pool in turn, a round at a time, until nothing more is to be done.

        Where notices never cease that is never: then `unfinished` says so after a while, and the rest has its turn.
        """
        there = [key for key in caches if key in self.caches]
        going, since = {key: self._begin(key, in_full=in_full) for key in there}, time.monotonic()
        while going and not self.stopping:
            for key, steps in list(going.items()):
                with self._isolated(key):
                    record = next(steps, OVER)
                    if record is not OVER:
                        _log(record)
                        continue
                del going[key]
            # What happened meanwhile counts for the rest of the queue, and may be another pool's. Begun anew, as rounds
            # that were about to end would not look again.
            if self._receive():
                if time.monotonic() - since >= LEAD_SECONDS:
                    self.unfinished = True
                    return
                going = {key: self._begin(key, in_full=False) for key in self.caches}

    def _begin(self, key: int, *, in_full: bool) -> Iterator[Round | None]:
        return rounds(self.caches[key], fence=self.session.fence, in_full=in_full)


def _log(done: Round | None) -> None:
    if done is not None:
        logger.info(
            "round %s of pool %s: %s considered, %s placed, %.1f ms",
            done.pk,
            done.pool.name,
            done.considered,
            done.placed,
            done.duration_us / 1000,
        )
