"""What pages watch: who watches is written down, so that telemetry which nobody looks at costs nothing.

Each open page keeps the groups that it watches in a sorted set of Redis, by the time until which they count. Whoever
stores telemetry reads the set once a second and sends only to those groups, each its own claim's or node's part.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from redis.exceptions import RedisError

from apps.nodes.services.telemetry.storing import Measured
from apps.scheduling import events

logger = logging.getLogger(__name__)

# A page that is gone without a word is sent to for this long.
WATCHED_SECONDS = 60.0
# How often a page says that it still watches.
AGAIN_SECONDS = 20.0
# The set is read at most this often.
READ_SECONDS = 1.0


class _Known:
    """The groups that are watched, as last read in this loop."""

    def __init__(self) -> None:
        self.groups: frozenset[str] = frozenset()
        self.read_at = -READ_SECONDS


_known: "WeakKeyDictionary[asyncio.AbstractEventLoop, _Known]" = WeakKeyDictionary()


def _redis() -> tuple[Any, str]:
    """The channel layer's own connection, and the set's name."""
    layer: Any = events.channel_layer()
    return layer.connection(0), f"{layer.prefix}:watched"


async def watch(groups: Iterable[str]) -> None:
    """Say that these groups are watched for the next minute."""
    redis, name = _redis()
    now = time.time()
    await redis.zremrangebyscore(name, "-inf", now)
    await redis.zadd(name, dict.fromkeys(groups, now + WATCHED_SECONDS))


async def keep_watching(groups: Sequence[str]) -> None:
    """Say so until cancelled."""
    while True:
        try:
            await watch(groups)
        except (RedisError, OSError) as error:
            logger.warning("no telemetry to %s for now: %s", groups[0], error)
        await asyncio.sleep(AGAIN_SECONDS)


async def watched() -> frozenset[str]:
    """The groups that somebody watches, at most a second old."""
    known = _known.setdefault(asyncio.get_running_loop(), _Known())
    now = time.monotonic()
    if now - known.read_at >= READ_SECONDS:
        known.read_at = now
        redis, name = _redis()
        members = await redis.zrangebyscore(name, time.time(), "+inf")
        known.groups = frozenset(member.decode() for member in members)
    return known.groups


async def show(batch: Sequence[Measured]) -> None:
    """Send each watched node and claim its part; never raises: a chart catches up by itself."""
    try:
        async with asyncio.timeout(events.HINT_SECONDS):
            groups = await watched()
            if groups:
                layer = events.channel_layer()
                for group, message in _messages(batch, groups):
                    await layer.group_send(group, message)
    except (RedisError, OSError, TimeoutError) as error:
        logger.warning("telemetry of %d frames was shown to nobody: %s", len(batch), error)


def _messages(batch: Sequence[Measured], groups: frozenset[str]) -> Iterable[tuple[str, dict[str, object]]]:
    for source, usage in batch:
        # Sequence numbers are the node's own: a page that watches a claim on two nodes counts them apart.
        base = {"type": "live.usage", "node": source.node_name, "seq": usage.seq, "at": usage.at}
        by_claim: dict[str, list[dict[str, Any]]] = defaultdict(list)
        carried = source.carried or {}
        of_node = events.node_group(source.node_uid)
        for item in usage.assignments:
            known = carried.get(item.uid)
            if known is not None and (of_node in groups or events.claim_group(known.claim_uid) in groups):
                shown = {**msgspec.to_builtins(item), "claim": known.claim_uid, "gpu": known.gpu_uuid}
                by_claim[known.claim_uid].append(shown)
        if of_node in groups:
            gpus = [msgspec.to_builtins(gpu) for gpu in usage.gpus]
            yield of_node, {**base, "gpus": gpus, "assignments": [one for some in by_claim.values() for one in some]}
        for claim_uid, mine in by_claim.items():
            if (group := events.claim_group(claim_uid)) in groups:
                yield group, {**base, "assignments": mine}
