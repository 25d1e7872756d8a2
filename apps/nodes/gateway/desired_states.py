"""What nodes are wanted to be, read for all connections of this process that ask: together, and as late as possible.

Who asks is told what is so after it asked; who asks again before it is told, is told once. So a thousand nodes that
change together are twenty reads, a node that changes ten times at once is one or two, and a hint needs to say
nothing but that something changed.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from weakref import WeakKeyDictionary

from django.db import InterfaceError, OperationalError, close_old_connections

from agent import wire
from apps.nodes.models import Node
from apps.nodes.providers import node_claims

logger = logging.getLogger(__name__)

# Nodes of one read. Of a fleet that changes as a whole the first agents are told while the others' states are read.
AT_ONCE = 50
RETRY_SECONDS = 1.0

# Told with the frame, in the loop; it must not raise.
Told = Callable[[str], None]
# Told that there is none for it, likewise.
Failed = Callable[[], None]
# What is over by itself.
AWAY = (OperationalError, InterfaceError)


class DesiredStates:
    """One process's. Belongs to its event loop."""

    def __init__(self) -> None:
        self._asked: dict[Told, tuple[int, Failed]] = {}
        self._reading: asyncio.Task[None] | None = None
        # A thread of its own: a resize must not wait behind what a fleet's agents observe.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="wanted")

    def ask(self, node_id: int, told: Told, failed: Failed) -> None:
        """Have it told the node's whole wanted state, as it is from now on, or that this cannot be read.

        A node that is gone is told nothing.
        """
        self._asked[told] = node_id, failed
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        while self._asked:
            some = dict(islice(self._asked.items(), AT_ONCE))
            for told in some:
                del self._asked[told]
            try:
                texts = await self._texts_of(sorted({node_id for node_id, _ in some.values()}))
            except AWAY as error:
                logger.warning("%d nodes wait for their desired state: %s", len(some), error)
                self._asked = some | self._asked
                await asyncio.sleep(RETRY_SECONDS)
            else:
                for told, (node_id, failed) in some.items():
                    _answer(texts.get(node_id, ""), told, failed)
        self._reading = None

    async def _texts_of(self, node_ids: Sequence[int]) -> dict[int, str | None]:
        """Of the nodes that are there; None: it cannot be read. Raises what is over by itself."""
        try:
            return {**await asyncio.get_running_loop().run_in_executor(self._thread, _texts, node_ids)}
        except AWAY:
            raise
        except Exception:  # whatever it is, the next must not wait for ever
            logger.exception("the desired states of nodes %s were not read", node_ids)
        if len(node_ids) == 1:
            return {node_ids[0]: None}
        # What one node's row raises holds up no other.
        return {key: text for node_id in node_ids for key, text in (await self._texts_of([node_id])).items()}


def _answer(text: str | None, told: Told, failed: Failed) -> None:
    """Empty: the node is gone."""
    if text is None:
        failed()
    elif text:
        told(text)


def _texts(node_ids: Sequence[int]) -> dict[int, str]:
    close_old_connections()
    try:
        states = node_claims.get().desired(node_ids)
        return {node_id: wire.encode(state) for node_id, state in states.items() if not _too_many(node_id, state)}
    finally:
        close_old_connections()


def _too_many(node_id: int, state: wire.Desired) -> bool:
    """An agent refuses such a frame, and what is left out of one it ends: it keeps what it was told last."""
    number, most = len(state.assignments), wire.MAX_ASSIGNMENTS
    if number > most:
        name = Node.objects.values_list("name", flat=True).get(pk=node_id)
        logger.error(
            "node %s has %d assignments and an agent takes %d: it is told of no change",
            name,
            number,
            wire.MAX_ASSIGNMENTS,
        )
    return number > wire.MAX_ASSIGNMENTS


_states_of_loops: "WeakKeyDictionary[asyncio.AbstractEventLoop, DesiredStates]" = WeakKeyDictionary()


def of_this_loop() -> DesiredStates:
    """This event loop's."""
    loop = asyncio.get_running_loop()
    if loop not in _states_of_loops:
        _states_of_loops[loop] = DesiredStates()
    return _states_of_loops[loop]
