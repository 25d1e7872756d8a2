"""Watched groups: a register of the groups that open pages watch, so that telemetry nobody watches costs nothing.

Each open page keeps its groups, with its process, in a sorted set of Redis, by the time until which they count. A
process that stores telemetry reads the set once a second and sends only to those groups, each its own claim's or node's
part; through Redis only what a page of another process watches.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from django.conf import settings
from redis.exceptions import RedisError

from apps.nodes.services.telemetry.storing import Measured
from apps.scheduling import events
from gpucloud import hints

logger = logging.getLogger(__name__)

# A page that is gone without closing is sent to for this long.
WATCHED_SECONDS = 60.0
# The period after which a page registers its groups again.
AGAIN_SECONDS = 20.0
# The set is read at most this often.
READ_SECONDS = 1.0


Watched = Mapping[str, frozenset[str]]


class _Known:
    """The watched groups and their processes, as last read in this loop."""

    def __init__(self) -> None:
        self.groups: Watched = {}
        self.read_at = -READ_SECONDS


_known: "WeakKeyDictionary[asyncio.AbstractEventLoop, _Known]" = WeakKeyDictionary()


def _name() -> str:
    return f"{settings.REDIS_PREFIX}:watched"


async def watch(groups: Iterable[str]) -> None:
    """Register these groups as watched in this process for the next minute."""
    bus, now = hints.bus(), time.time()
    await bus.redis.zremrangebyscore(_name(), "-inf", now)
    await bus.redis.zadd(_name(), {f"{bus.name} {group}": now + WATCHED_SECONDS for group in groups})


async def keep_watching(groups: Sequence[str]) -> None:
    """Register the groups again and again, until cancelled."""
    while True:
        try:
            async with asyncio.timeout(hints.ANSWER_SECONDS):
                await watch(groups)
        except (RedisError, OSError, TimeoutError) as error:
            logger.warning("cannot register %s for telemetry: %s", groups[0], error)
        await asyncio.sleep(AGAIN_SECONDS)


async def read_watched() -> Watched:
    """Return the watched groups and the processes that watch them; at most a second old."""
    known = _known.setdefault(asyncio.get_running_loop(), _Known())
    now = time.monotonic()
    if now - known.read_at >= READ_SECONDS:
        known.read_at = now
        found: dict[str, set[str]] = defaultdict(set)
        members: Any = await hints.bus().redis.zrangebyscore(_name(), time.time(), "+inf")
        for member in members:
            process, _, group = member.decode().partition(" ")
            found[group].add(process)
        known.groups = {group: frozenset(processes) for group, processes in found.items()}
    return known.groups


async def show(batch: Sequence[Measured]) -> None:
    """Send each watched node and claim its part; never raises: a chart catches up by itself."""
    bus = hints.bus()
    try:
        async with asyncio.timeout(hints.ANSWER_SECONDS):
            groups = await read_watched()
            elsewhere: list[tuple[str, hints.Message]] = []
            for group, message in _messages(batch, groups.keys()) if groups else ():
                if groups[group] == {bus.name}:
                    bus.deliver(group, message)
                else:
                    elsewhere.append((group, message))
            await bus.publish(elsewhere)
    except (RedisError, OSError, TimeoutError) as error:
        logger.warning("telemetry of %d frames was not sent: %s", len(batch), error)


def _messages(batch: Sequence[Measured], groups: Collection[str]) -> Iterable[tuple[str, hints.Message]]:
    for source, usage in batch:
        # Sequence numbers are per node: a page that watches a claim on two nodes counts them apart.
        base = {"type": "usage", "node": source.node_name, "seq": usage.seq, "at": usage.at}
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
            every = [one for some in by_claim.values() for one in some]
            yield of_node, _as_text({**base, "gpus": gpus, "assignments": every})
        for claim_uid, mine in by_claim.items():
            if (group := events.claim_group(claim_uid)) in groups:
                yield group, _as_text({**base, "assignments": mine})


def _as_text(shown: dict[str, Any]) -> hints.Message:
    """Return the message as text, written once for any number of pages."""
    return {"type": "live.usage", "text": msgspec.json.encode(shown).decode()}
