"""Request throttling per caller: one token bucket each in Redis, shared by all server processes.

A bucket has THROTTLE_BURST requests and refills at THROTTLE_PER_SECOND. It is stored as one number, the time at which
it would be full (the generic cell rate algorithm), so that checking and taking are one atomic step in Redis. While
Redis is down every request passes: a throttle protects callers from one another and is not a lock.
"""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from django.conf import settings
from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.retry import Retry
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from gpucloud.errors import Busy

if TYPE_CHECKING:
    # It imports this module through the settings.
    from rest_framework.views import APIView

logger = logging.getLogger(__name__)

# Times are microseconds of Redis' own clock: the servers' clocks may differ. Returns how many more requests may come
# now, and the wait. A stored time later than an empty bucket's was written before that clock was set back: the bucket
# starts full.
TAKE = """
local interval, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local empty = now + burst * interval
local kept = tonumber(redis.call('GET', KEYS[1]) or now)
if kept > empty then
    kept = now
end
local full = math.max(kept, now) + interval
local room = empty - full
if room < 0 then
    return {-1, math.ceil(-room)}
end
redis.call('SET', KEYS[1], string.format('%.2f', full), 'PX', math.ceil((full - now) / 1000))
return {math.floor(room / interval), 0}
"""
# On one machine a reply takes 0.1 ms; after this time Redis counts as down.
ANSWER_SECONDS = 0.25
# Redis is not asked again for this long after a failure: else every request would wait for it.
AWAY_SECONDS = 1.0
# Key of an ASGI scope: marks an internal request on behalf of one that was counted already.
COUNTED = "gpucloud.counted"


class TooManyRequests(Busy, code="throttled", title="Too many requests"):
    """The caller's bucket is empty."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """State of a bucket after a request."""

    left: int
    per_second: int
    burst: int

    def headers(self) -> dict[str, str]:
        """Return the headers `RateLimit` and `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers)."""
        window = max(1, math.ceil(self.burst / self.per_second))
        refill = math.ceil((self.burst - self.left) / self.per_second)
        return {
            "RateLimit-Policy": f'"caller";q={self.burst};w={window}',
            "RateLimit": f'"caller";r={self.left};t={refill}',
        }


class PerCaller(BaseThrottle):
    """A throttle with one bucket per token, per person, and per address of anonymous callers."""

    def allow_request(self, request: Request, view: "APIView") -> bool:
        """Take one request from the caller's bucket.

        Raises TooManyRequests (429).
        """
        per_second, burst = settings.THROTTLE_PER_SECOND, settings.THROTTLE_BURST
        if not per_second or getattr(request, "scope", {}).get(COUNTED):
            return True
        answer = _redis().take(_caller(request), per_second=per_second, burst=burst)
        if answer is None:
            return True
        left, wait_us = answer
        # Attributes set on DRF's request are passed to Django's; the view sets the headers.
        cast(Any, request).bucket = Bucket(max(0, left), per_second, burst)
        if left < 0:
            raise TooManyRequests(
                f"{per_second} requests a second and {burst} at once are what one caller may send: wait, then go on.",
                retry_after_seconds=max(1, math.ceil(wait_us / 1e6)),
                per_second=per_second,
                burst=burst,
            )
        return True


def _caller(request: Request) -> str:
    principal = getattr(request, "user", None)
    return str(principal.pk) if principal is not None else f"address:{request.META.get('REMOTE_ADDR')}"


class Buckets:
    """The connection to Redis, with a circuit breaker."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._script = Redis.from_url(
            settings.REDIS_URL,
            socket_timeout=ANSWER_SECONDS,
            socket_connect_timeout=ANSWER_SECONDS,
            retry=Retry(NoBackoff(), 0),
        ).register_script(TAKE)
        self._away_until = 0.0

    def take(self, caller: str, *, per_second: int, burst: int) -> tuple[int, int] | None:
        """Take one request; return the requests left and the wait in microseconds, or None if Redis is down.

        Below zero requests left: refused.
        """
        if self._clock() < self._away_until:
            return None
        try:
            left, wait_us = self._script(
                keys=[f"{settings.REDIS_PREFIX}:throttle:{caller}"], args=[1e6 / per_second, burst]
            )
        except (RedisError, OSError) as error:
            self._away_until = self._clock() + AWAY_SECONDS
            logger.warning("nobody is throttled, Redis does not answer: %s", error)
            return None
        return int(left), int(wait_us)


@cache
def _redis() -> Buckets:
    return Buckets()
