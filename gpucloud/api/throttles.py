"""How many requests a caller may send: one bucket each in Redis, which all server processes share.

A bucket holds THROTTLE_BURST requests and fills again by THROTTLE_PER_SECOND. It is kept as one number, the moment at
which it would be full (the generic cell rate algorithm), so that looking and taking are one step of the server's.
A Redis that is away lets everybody pass: a throttle protects the others from one, and is no lock.
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
    # It imports this module, by the settings.
    from rest_framework.views import APIView

logger = logging.getLogger(__name__)

# In microseconds by Redis' own clock: the servers' may differ. Returns how many more may come now, and the wait.
# A moment later than an empty bucket's was kept before that clock was set back: the bucket begins anew.
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
# On one machine an answer takes 0.1 ms. What takes so long does not answer at all.
ANSWER_SECONDS = 0.25
# A Redis that did not answer is left alone for a moment, or every request would wait for it.
AWAY_SECONDS = 1.0
# Of an ASGI scope: a request that the server itself makes on behalf of one that was counted.
COUNTED = "gpucloud.counted"


class TooManyRequests(Busy):
    """The caller's bucket is empty."""

    code = "throttled"
    title = "Too many requests"


@dataclass(frozen=True, slots=True)
class Bucket:
    """What is left after a request."""

    left: int
    per_second: int
    burst: int

    def headers(self) -> dict[str, str]:
        """`RateLimit` and its policy (draft-ietf-httpapi-ratelimit-headers): how many may come within how long."""
        window = max(1, math.ceil(self.burst / self.per_second))
        refill = math.ceil((self.burst - self.left) / self.per_second)
        return {
            "RateLimit-Policy": f'"caller";q={self.burst};w={window}',
            "RateLimit": f'"caller";r={self.left};t={refill}',
        }


class PerCaller(BaseThrottle):
    """A bucket for each token, for each person, and for each address of callers without either."""

    def allow_request(self, request: Request, view: "APIView") -> bool:
        """Take one. Raises TooManyRequests (429)."""
        per_second, burst = settings.THROTTLE_PER_SECOND, settings.THROTTLE_BURST
        if not per_second or getattr(request, "scope", {}).get(COUNTED):
            return True
        answer = _redis().take(_caller(request), per_second=per_second, burst=burst)
        if answer is None:
            return True
        left, wait_us = answer
        # DRF's request passes on to the view what is set on it; the headers are the view's.
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
    """The way to Redis, and whether it is open."""

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
        """How many are left (below zero: refused) and how many microseconds to wait; None where Redis is away."""
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
