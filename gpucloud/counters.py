"""Counters and histograms of all control plane processes, stored in a Redis hash that outlives each of them.

A count is correct only if every process adds to it: servers, workers and the scheduler, on any host. Each process
collects its increments and adds them to the hash once a second, all or nothing; a scrape reads the hash. Increments of
a killed process since its last write (at most a second) are lost. If Redis loses its memory the counts restart at zero,
which Prometheus treats as a counter reset. Facts stored in rows are not counted here but read from the rows.
"""

import atexit
import json
import logging
import os
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from django.conf import settings
from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.retry import Retry

logger = logging.getLogger(__name__)

WRITE_SECONDS = 1.0
# On one machine a reply takes less than a millisecond; a slower write is tried again a second later.
ANSWER_SECONDS = 2.0
SUM = "sum"


@dataclass(frozen=True)
class Counter:
    """A counter that only grows.

    Each label must have few values: every combination is a series for ever.
    """

    name: str
    words: str
    labels: tuple[str, ...] = ()

    def add(self, *values: str, amount: float = 1) -> None:
        """Add one for these label values."""
        _tally.add(_field(self.name, values), amount)


@dataclass(frozen=True)
class Histogram:
    """A histogram of durations, with upper bounds in rising order."""

    name: str
    words: str
    bounds: tuple[float, ...]
    labels: tuple[str, ...] = ()

    def observe(self, value: float, *values: str) -> None:
        """Record one duration."""
        _tally.add(_field(self.name, values, str(bisect_left(self.bounds, value))), 1)
        _tally.add(_field(self.name, values, SUM), value)


@dataclass(frozen=True)
class Count:
    """One number of the hash. For a histogram `bucket` is the index of its upper bound, or `sum`."""

    name: str
    values: tuple[str, ...]
    part: str | None
    amount: float


class _Tally:
    """Increments of this process that are not written yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: dict[str, float] = defaultdict(float)
        self._writer: threading.Thread | None = None

    def add(self, field: str, amount: float) -> None:
        with self._lock:
            self._pending[field] += amount
            if self._writer is None:
                self._writer = threading.Thread(target=self._write_on, name="counters", daemon=True)
                self._writer.start()

    def write(self) -> bool:
        """Add all increments to the hash; return False and keep them if Redis did not accept them."""
        with self._lock:
            taken, self._pending = self._pending, defaultdict(float)
        if not taken:
            return True
        try:
            with _redis().pipeline(transaction=True) as pipe:
                for field, amount in taken.items():
                    pipe.hincrbyfloat(_key(), field, amount)
                pipe.execute()
        except (RedisError, OSError) as error:
            logger.warning("counts are kept for later, Redis does not take them: %s", error)
            with self._lock:
                for field, amount in taken.items():
                    self._pending[field] += amount
            return False
        return True

    def begin_anew(self) -> None:
        """Drop the increments in a forked child: its parent writes them."""
        self.__init__()  # type: ignore[misc]

    def _write_on(self) -> None:
        while True:
            threading.Event().wait(WRITE_SECONDS)
            self.write()


_tally = _Tally()
os.register_at_fork(after_in_child=_tally.begin_anew)


@atexit.register
def _write_last() -> None:
    """Write what is left when the process ends; drop it silently if Redis has ended: nobody writes it later."""
    logger.disabled = True
    _tally.write()


def write() -> bool:
    """Write this process' increments now, for callers that cannot wait a second."""
    return _tally.write()


def read() -> Iterator[Count]:
    """Return every number of the hash, the sum over all processes.

    Raises RedisError or OSError.
    """
    found: dict[bytes, bytes] = _redis().hgetall(_key())  # type: ignore[assignment]
    for field, amount in sorted(found.items()):
        name, values, part = json.loads(field)
        yield Count(name, tuple(values), part, float(amount))


def _field(name: str, values: tuple[str, ...], part: str | None = None) -> str:
    return json.dumps([name, values, part], separators=(",", ":"))


def _key() -> str:
    return f"{settings.REDIS_PREFIX}:counters"


@cache
def _redis() -> Redis:
    return Redis.from_url(
        settings.REDIS_URL,
        socket_timeout=ANSWER_SECONDS,
        socket_connect_timeout=ANSWER_SECONDS,
        retry=Retry(NoBackoff(), 0),
    )


SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

HTTP_REQUESTS = Counter(
    "gpucloud_http_requests", "HTTP requests answered, by method, route and status.", ("method", "route", "status")
)
HTTP_SECONDS = Histogram("gpucloud_http_request_seconds", "Time to answer an HTTP request.", SECONDS, ("method",))
ROUNDS = Counter("gpucloud_rounds", "Rounds of the scheduler that brought something.", ("pool",))
ROUND_SECONDS = Histogram(
    "gpucloud_round_seconds", "Duration of the rounds that brought something.", (0.001, *SECONDS), ("pool",)
)
DECISIONS = Counter(
    "gpucloud_decisions",
    "Claims decided by rounds: placed, refused (told a new reason why not yet), or lost (something had changed).",
    ("pool", "outcome"),
)
REFUSALS = Counter("gpucloud_refusals", "Claims told why they go on waiting, by the first reason.", ("pool", "reason"))
PACKS = Counter("gpucloud_pack_moves", "Moves of claims that packing ordered by itself.", ("pool", "kind"))
ROTATIONS = Counter("gpucloud_rotation_swaps", "Claims that came in by the rotation of their GPUs.", ("pool",))
PUSHES = Counter(
    "gpucloud_pushes",
    "Nodes whose agents were to be sent their desired state: changes, and repairs of those unseen.",
    ("why",),
)
PUSH_SECONDS = Histogram(
    "gpucloud_push_latency_seconds", "From the change of an assignment to the word that it is in force.", SECONDS
)
TELEMETRY_FRAMES = Counter("gpucloud_telemetry_frames", "Usage frames of agents that were stored.")
TELEMETRY_SECONDS = Histogram(
    "gpucloud_telemetry_lag_seconds", "From a measurement on the node to its being stored.", SECONDS
)
MEMORY_MOVED = Counter(
    "gpucloud_memory_moved_bytes", "Borrowed memory that moved between GPUs and host memory, in both directions."
)
MEMORY_STOOD = Counter(
    "gpucloud_memory_stood_seconds", "Time for which programs of claims stood still while their borrowed memory moved."
)
WEBHOOK_ATTEMPTS = Counter(
    "gpucloud_webhook_attempts",
    "Attempts to deliver a message to a webhook: delivered, retried (it is tried again), or failed (the last one).",
    ("outcome",),
)
POOLS_SET_ASIDE = Counter(
    "gpucloud_pools_set_aside", "How often the scheduler failed over a pool and left it alone for a while.", ("pool",)
)
# All of the above: a new one is in a scrape without another line.
EVERY: tuple[Counter | Histogram, ...] = tuple(
    one for one in list(globals().values()) if isinstance(one, Counter | Histogram)
)
