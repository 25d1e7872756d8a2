"""The network use of claims by clients on other machines, as it is now: in Redis, for a few seconds.

Nobody is charged for it, so it needs no rows; sums since the start of the node's endpoint are in the agent's metrics.
"""

import functools
import logging
from collections.abc import Mapping

import msgspec
from django.conf import settings
from redis import Redis, RedisError

from agent import wire

logger = logging.getLogger(__name__)

# An agent reports once a second.
KEPT_SECONDS = 10
# Storing measurements waits for it.
ANSWER_SECONDS = 0.5


def record(used: Mapping[str, wire.RemoteUse]) -> None:
    """Keep the present use of these claims, by uid. Without Redis nothing is kept."""
    try:
        with _redis().pipeline(transaction=False) as pipe:
            for claim_uid, one in used.items():
                pipe.set(_key(claim_uid), msgspec.json.encode(one), ex=KEPT_SECONDS)
            pipe.execute()
    except (RedisError, OSError) as error:
        logger.warning("what remote clients use is not kept: %s", error)


def read(claim_uid: object) -> wire.RemoteUse | None:
    """Return the present use of a claim; None: it has no clients, or nothing is known."""
    try:
        text = _redis().get(_key(claim_uid))
        return None if text is None else msgspec.json.decode(text, type=wire.RemoteUse)
    except (RedisError, OSError, msgspec.MsgspecError):
        return None


def _key(claim_uid: object) -> str:
    return f"{settings.REDIS_PREFIX}:remote-use:{claim_uid}"


@functools.cache
def _redis() -> Redis:
    return Redis.from_url(settings.REDIS_URL, socket_timeout=ANSWER_SECONDS, socket_connect_timeout=ANSWER_SECONDS)
