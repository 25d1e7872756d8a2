"""Batch storage of usage frames from all agents of a process: collect, store, acknowledge.

A frame costs the process its decoding and a place in a list; all frames of a quarter of a second share a thread, a
transaction and a statement. Nothing is acknowledged before it is stored.
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

# Part of the 1.5 s after which a chart shows an event. Fewer, larger batches cost less.
GATHER_SECONDS = 0.25
# Reached only if the database is away or too slow; then agents keep their frames.
MOST_WAITING = 20_000
# Per node, whatever its connections: an agent sends eight ahead, and one that does not wait displaces no others.
MOST_OF_ONE = 64
# A larger batch would block the thread and the interpreter for long.
AT_ONCE = 1000
RETRY_SECONDS = 1.0

# Called with the highest stored number, or with None if later frames are lost and must be sent again.
# It must not block: other connections' frames wait meanwhile.
Told = Callable[[int | None], None]


class NoRoom(Exception):
    """The frame is not accepted; the message gives the reason."""


class _Waiting(NamedTuple):
    measured: Measured
    told: Told


class Intake:
    """Batches of one process. Belongs to its event loop."""

    def __init__(self) -> None:
        self._waiting: list[_Waiting] = []
        # Frames by node, including those that are being stored.
        self._of_node: Counter[int] = Counter()
        self._storing: asyncio.Task[None] | None = None
        self._showing: asyncio.Task[None] | None = None
        # A thread of its own: it keeps its connection and its temporary table.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="telemetry")

    def put(self, source: Source, usage: wire.Usage, told: Told) -> None:
        """Store the frame with the next batch. Raises NoRoom."""
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
            # The database is away. Frames wait here while there is room: a thousand agents that reconnect at once are
            # more work than this.
            logger.warning("%d frames of agents wait for the database: %s", len(batch), error)
            self._waiting = batch + self._waiting
            await asyncio.sleep(RETRY_SECONDS)
            return
        except Exception:  # any exception: the next batch must not wait for ever
            if len(batch) > 1:
                # One bad frame must not lose the others: halve the batch until it is alone.
                for half in (batch[: len(batch) // 2], batch[len(batch) // 2 :]):
                    await self._store(half)
                return
            # Nothing was stored, so nothing is acknowledged; the agent reconnects and sends it again.
            logger.exception("a frame of node %s was not stored", batch[0].measured.source.node_name)
            stored = False
        self._leave(measured)
        highest: dict[Told, int] = {}
        for waiting in batch:
            highest[waiting.told] = max(waiting.measured.usage.seq, highest.get(waiting.told, 0))
        for told, seq in highest.items():
            told(seq if stored else None)
        if stored and (self._showing is None or self._showing.done()):
            # Skipped while the previous batch is being shown: a chart reads a missed second from the database.
            self._showing = asyncio.ensure_future(node_claims.get().show(measured))

    def _leave(self, measured: list[Measured]) -> None:
        self._of_node.subtract(Counter(source.node_id for source, _ in measured))
        # Keep only nodes with waiting frames: others may be gone for good.
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
    """Return the instance of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _intakes:
        _intakes[loop] = Intake()
    return _intakes[loop]
