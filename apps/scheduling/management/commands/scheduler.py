"""The command `manage.py scheduler`: a long-lived process that decides rounds, with one leader for each pool.

Notices of the database about changes wake it (`services.cycles.notices`). A session advisory lock for each pool makes
one of several schedulers its leader. The leader listens, leads and commits on one session, so a leader that lost its
lock cannot commit.

A scheduler that leads no pool follows all: it keeps their caches up to date by the same notices, and reads nothing when
it takes over.

An exception over one pool sets only that pool aside, for longer each time; then this or another scheduler reads it
again. Where the claims that caused the exception are known, only these are set aside (`services.cycles.rounds`).
"""

import logging
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.core.management.base import BaseCommand
from django.db import connection
from django.utils import timezone

from apps.quotas.models import Pool
from apps.scheduling.core.placement import native
from apps.scheduling.core.placement.backends import resolve
from apps.scheduling.models import Round
from apps.scheduling.services.cycles.comparing import compare_in_parts
from apps.scheduling.services.cycles.notices import Session
from apps.scheduling.services.cycles.pool_cache import PoolCache
from apps.scheduling.services.cycles.rounds import rounds
from apps.scheduling.services.failures import SESSION_LOST, Backoff
from gpucloud import counters, heartbeat

logger = logging.getLogger(__name__)

BACK_ENDS = {
    "c": "the C kernel",
    "python": f"plain Python, slowly: the C kernel is not built, or of other sources (make -C {native.SOURCES})",
}

# The longest time for which a stop signal may go unnoticed.
NOTICE_SECONDS = 0.5
# The death of a leader sends no notice: a pool may be without one for this long. Who follows looks more often.
LEAD_SECONDS, FOLLOW_SECONDS = 1.0, 0.25
# Changes in a followed pool after which its record begins anew, so that the first round does not write them all.
MOST_FOLLOWED_STEPS = 5_000
# A node is lost after ten seconds of silence, which sends no notice. Until it is noticed here a claim may be placed on
# the node, but not committed: the commit checks the node again.
SILENCE_SECONDS = 5.0
# Notices of one session are not lost. The comparison is for causes that nobody has thought of; what it finds is logged.
COMPARE_SECONDS = 60.0
# After a comparison that found something, the wait for a notice of it. It is rare, and nothing is placed meanwhile.
LATE_NOTICE_SECONDS = 2.0
# The first and the longest pause of a pool over which something raised.
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 1.0, 60.0


# Marks the end of a pool's rounds.
OVER = Round()


class Every:
    """A timer: due once in so many seconds, for the first time after `first`."""

    def __init__(self, seconds: float, *, first: float = 0.0) -> None:
        self._seconds, self._next = seconds, time.monotonic() + first

    def is_due(self) -> bool:
        """Return True, and restart the timer, if it is time again."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._seconds
        return True


class Command(BaseCommand):
    """The scheduler's process."""

    help = "Place waiting claims until stopped by a signal. Start any number of schedulers: one leads each pool."
    # The checks import every view, a third of a start: `migrate` runs them.
    requires_system_checks = ()

    stopping = unfinished = False

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        # Caches of the pools that this process leads, and of those that it follows, by the pool's key.
        self.caches: dict[int, PoolCache] = {}
        self.followed: dict[int, PoolCache] = {}

    def handle(self, *args: Any, **options: Any) -> None:
        """Serve until SIGTERM or SIGINT; survive restarts of the database."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        logger.info("scheduler started; placement by %s", BACK_ENDS[resolve("auto")])
        self.backoff = Backoff(first_seconds=FIRST_PAUSE_SECONDS, most_seconds=LAST_PAUSE_SECONDS)
        while not self.stopping:
            heartbeat.beat()
            try:
                self._serve()
            except SESSION_LOST as error:
                logger.warning("database session lost, trying again in a second: %s", error)
                time.sleep(1)
            except Exception:
                # An error of no single pool: everything is read anew on another session.
                until = self.backoff.record_failure(None, now=time.monotonic())
                logger.exception("the scheduler failed and begins anew in %.0f s", until - time.monotonic())
                while time.monotonic() < until and not self.stopping:
                    heartbeat.beat()
                    time.sleep(NOTICE_SECONDS)
        connection.close()
        logger.info("scheduler stopped")

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def _serve(self) -> None:
        """Serve on one database session until stopped.

        1. Lead pools that have no leader: each second, and at once after the start. Follow the others.
        2. Check for silent nodes, which send no notice.
        3. Compare the caches with the database.
        4. Receive notices, and update the caches by them.
        5. Run rounds, if there is news, a claim is due, or the last rounds were cut short.
        """
        self.session, self.caches, self.followed, self.unfinished = Session(), {}, {}, False
        lead, follow, silence, compare = (
            Every(LEAD_SECONDS),
            Every(FOLLOW_SECONDS),
            Every(SILENCE_SECONDS),
            Every(COMPARE_SECONDS, first=COMPARE_SECONDS),
        )
        while not self.stopping:
            heartbeat.beat()
            # 1. Lead
            if lead.is_due() or (follow.is_due() and self._misses_leader()):
                self._lead()
            # 2. Silent nodes
            if silence.is_due():
                for key, cache in self._known():
                    with self._isolated(key):
                        cache.refresh_silent_nodes()
            # 3. Compare
            if compare.is_due():
                self._compare()
            # 4. Notices
            behind, self.unfinished = self.unfinished, False
            pause = NOTICE_SECONDS if self.caches else FOLLOW_SECONDS
            received, now = self._receive(seconds=0 if behind else pause), timezone.now().timestamp()
            # 5. Rounds
            if behind or received or any(cache.has_due_claims(now=now) for cache in self.caches.values()):
                self._rounds(list(self.caches), in_full=False)

    def _receive(self, *, seconds: float = 0) -> bool:
        notices = self.session.receive(seconds=seconds)
        if notices:
            for key, cache in self._known():
                with self._isolated(key):
                    cache.apply(notices)
        return bool(notices)

    def _known(self) -> list[tuple[int, PoolCache]]:
        """Return all caches, of led and of followed pools."""
        return [*self.caches.items(), *self.followed.items()]

    def _lead(self) -> None:
        """Lead pools that have no leader: read each into a cache, and run rounds for the claims that wait there."""
        pools = {pool.pk: pool for pool in Pool.objects.order_by("pk")}
        for caches in (self.caches, self.followed):
            for key in caches.keys() - pools.keys():
                del caches[key]
        led = []
        for key, pool in pools.items():
            if key in self.caches or self.backoff.is_paused(key, now=time.monotonic()) or not self.session.leads(pool):
                continue
            with self._isolated(key, pool):
                # What the leader before committed is known from its notices, which came before its lock was free.
                self._receive()
                self.caches[key] = self.followed.pop(key) if key in self.followed else PoolCache(pool)
                logger.info("leading pool %s", pool.name)
                led.append(key)
        self._rounds(led, in_full=True)
        if not self.caches:
            self._follow(pools)

    def _follow(self, pools: Mapping[int, Pool]) -> None:
        """Read one more pool that another scheduler leads, and shorten records.

        Only who leads no pool does so: reading a large one takes seconds, in which no round would run.
        """
        for key, cache in list(self.followed.items()):
            with self._isolated(key):
                if cache.journal.pending > MOST_FOLLOWED_STEPS:
                    cache.begin_record()
        for key, pool in pools.items():
            if key not in self.followed and not self.backoff.is_paused(key, now=time.monotonic()):
                with self._isolated(key, pool):
                    self.followed[key] = PoolCache(pool)
                    logger.info("following pool %s", pool.name)
                return

    @contextmanager
    def _isolated(self, key: int, pool: Pool | None = None) -> Iterator[None]:
        """Set this pool aside if the block raises, but for a lost session; another scheduler may lead it meanwhile."""
        try:
            yield
        except SESSION_LOST:
            raise
        except Exception:
            cache = self.caches.pop(key, None) or self.followed.pop(key, None)
            now = time.monotonic()
            until = self.backoff.record_failure(key, now=now)
            pool = cache.pool if cache is not None else pool
            logger.exception("pool %s failed: it is set aside for %.0f s", pool, until - now)
            if pool is not None:
                counters.POOLS_SET_ASIDE.add(pool.name)
                self.session.leave(pool)

    def _compare(self) -> None:
        """Compare all caches with the database, in parts; between them, run the rounds of pools that are led."""
        for key, cache in self._known():
            self._receive()
            with self._isolated(key):
                differed = 0
                for part in compare_in_parts(cache):
                    # Notices that come now may be of what the comparison found: a change can be read before its notice
                    # is received, on a busy machine long before.
                    received = self._receive(seconds=LATE_NOTICE_SECONDS if part else 0)
                    differed += 0 if received else part
                    if self.stopping or self._takes_over(received):
                        return
                if differed:
                    logger.warning("pool %s: %s rows were not as they were kept", cache.pool.name, differed)
                cache.forget_refusals()
        self._rounds(list(self.caches), in_full=True)

    def _takes_over(self, received: bool) -> bool:
        """Go on with the other work between two parts; return True if a pool was followed and is led now."""
        heartbeat.beat()
        if self.caches:
            if received:
                self._rounds(list(self.caches), in_full=False)
            return False
        if self._misses_leader():
            self._lead()
        return bool(self.caches)

    def _misses_leader(self) -> bool:
        """Return True if this process only follows, and a pool that it follows has no leader."""
        return not self.caches and self.session.is_any_free(cache.pool for cache in self.followed.values())

    def _rounds(self, caches: Iterable[int], *, in_full: bool) -> None:
        """Run the rounds of each pool in turn, one at a time, until nothing more changes.

        If notices never cease, that is never: then `unfinished` is set after a while, and the other duties have their
        turn.
        """
        there = [key for key in caches if key in self.caches]
        going, since = {key: self._begin(key, in_full=in_full) for key in there}, time.monotonic()
        while going and not self.stopping:
            heartbeat.beat()
            for key, steps in list(going.items()):
                with self._isolated(key):
                    record = next(steps, OVER)
                    if record is not OVER:
                        _log(record)
                        continue
                del going[key]
            # Changes meanwhile count for the rest of the queue, and may be another pool's. Rounds begin anew, as those
            # that were about to end would not see them.
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
