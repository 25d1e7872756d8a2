"""Where the frames of all of a process's agents meet: gathered for a moment, stored at once, then acknowledged.

A frame costs the process its decoding and a place in a list; thread, transaction and statement are shared by all that
came within the same quarter of a second. Nothing is acknowledged before it is stored.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from weakref import WeakKeyDictionary

from django.db import InterfaceError, OperationalError, close_old_connections

from agent import wire
from apps.nodes.providers import node_claims
from apps.nodes.services.telemetry import storing
from apps.nodes.services.telemetry.storing import Measured, Source

logger = logging.getLogger(__name__)

# Of the 1.5 s within which a chart shows what happened. Fewer, larger batches cost less.
GATHER_SECONDS = 0.25
# More than this wait only if the database is away or too slow; then agents keep what they have.
MOST_WAITING = 20_000
# Of one node, whatever its connections: an agent sends eight ahead, and one that does not wait takes no others' room.
MOST_OF_ONE = 64
# A batch larger than this would keep the thread, and what waits for the interpreter, for long.
AT_ONCE = 1000
RETRY_SECONDS = 1.0

# Told with the highest number that is stored, or with None: what was sent since is lost here, and must be sent again.
# It only notes it: nobody's connection keeps the others' frames waiting.
Told = Callable[[int | None], None]


class NoRoom(Exception):
    """The frame is not taken; the message says why."""


class _Waiting(NamedTuple):
    measured: Measured
    told: Told


class Intake:
    """One process's. Belongs to its event loop."""

    def __init__(self) -> None:
        self._waiting: list[_Waiting] = []
        # By node, with those that are being stored.
        self._of_node: Counter[int] = Counter()
        self._storing: asyncio.Task[None] | None = None
        self._showing: asyncio.Task[None] | None = None
        # A thread of its own: it keeps its connection and its temporary table.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="telemetry")

    def put(self, source: Source, usage: wire.Usage, told: Told) -> None:
        """Have it stored with the next batch. Raises NoRoom."""
        if len(self._waiting) >= MOST_WAITING:
            raise NoRoom("too much waits to be stored")
        if self._of_node[source.node_id] >= MOST_OF_ONE:
            raise NoRoom(f"{MOST_OF_ONE} frames of this node wait to be stored: wait for what is acknowledged")
        self._of_node[source.node_id] += 1
        self._waiting.append(_Waiting(Measured(source, usage), told))
        if self._storing is None:
            self._storing = asyncio.ensure_future(self._store_soon())

    async def _store_soon(self) -> None:
        await asyncio.sleep(GATHER_SECONDS)
        while self._waiting:
            batch, self._waiting = self._waiting[:AT_ONCE], self._waiting[AT_ONCE:]
            await self._store(batch)
            if len(self._waiting) < AT_ONCE:
                break
        self._storing = asyncio.ensure_future(self._store_soon()) if self._waiting else None

    async def _store(self, batch: list[_Waiting]) -> None:
        measured = [waiting.measured for waiting in batch]
        stored = True
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, _store_batch, measured)
        except (OperationalError, InterfaceError) as error:
            # The database is away. While there is room they wait here: a thousand agents that come back at once are
            # more work than this.
            logger.warning("%d frames of agents wait for the database: %s", len(batch), error)
            self._waiting = batch + self._waiting
            await asyncio.sleep(RETRY_SECONDS)
            return
        except Exception:  # whatever it is, the next batch must not wait for ever
            if len(batch) > 1:
                # One node's frame must not cost the others theirs: halved until it is alone.
                for half in (batch[: len(batch) // 2], batch[len(batch) // 2 :]):
                    await self._store(half)
                return
            # Nothing was stored, so nothing is acknowledged; the agent comes back and says it again.
            logger.exception("a frame of node %s was not stored", batch[0].measured.source.node_name)
            stored = False
        self._leave(measured)
        highest: dict[Told, int] = {}
        for waiting in batch:
            highest[waiting.told] = max(waiting.measured.usage.seq, highest.get(waiting.told, 0))
        for told, seq in highest.items():
            told(seq if stored else None)
        if stored and (self._showing is None or self._showing.done()):
            # What cannot be shown in time is not shown: a chart that misses a second reads it from the database.
            self._showing = asyncio.ensure_future(node_claims.get().show(measured))

    def _leave(self, measured: list[Measured]) -> None:
        self._of_node.subtract(Counter(source.node_id for source, _ in measured))
        # Only of nodes that wait: others are gone for good, perhaps.
        self._of_node = +self._of_node


def _store_batch(batch: list[Measured]) -> None:
    close_old_connections()
    try:
        storing.store(batch)
        node_claims.get().measured(batch)
    finally:
        close_old_connections()


_intakes: "WeakKeyDictionary[asyncio.AbstractEventLoop, Intake]" = WeakKeyDictionary()


def of_this_loop() -> Intake:
    """This event loop's."""
    loop = asyncio.get_running_loop()
    if loop not in _intakes:
        _intakes[loop] = Intake()
    return _intakes[loop]
