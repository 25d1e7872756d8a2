"""Reader of nodes' desired states for all connections of this process: batched, and as late as possible.

A caller gets the state as of after its call; a caller that asks again before the answer is answered once. So a thousand
nodes that change together are twenty reads, a node that changes ten times at once is one or two, and a hint only needs
to report that something changed.
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

# Nodes of one read. When a whole fleet changes the first agents are answered while further states are read.
AT_ONCE = 50
RETRY_SECONDS = 1.0

# Called with the frame, in the loop; must not raise.
Told = Callable[[str], None]
# Called if the state cannot be read, likewise.
Failed = Callable[[], None]
# Transient errors.
AWAY = (OperationalError, InterfaceError)


class DesiredStates:
    """Reader of one process. Belongs to its event loop."""

    def __init__(self) -> None:
        self._asked: dict[Told, tuple[int, Failed]] = {}
        self._reading: asyncio.Task[None] | None = None
        # A thread of its own: a resize must not wait for the storage of agents' observations.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="wanted")

    def ask(self, node_id: int, told: Told, failed: Failed) -> None:
        """Call back with the node's whole desired state as of now or later, or report that it cannot be read.

        There is no call for a node that is gone.
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
        """Return the frames of existing nodes; None if one cannot be read. Raises transient errors."""
        try:
            return {**await asyncio.get_running_loop().run_in_executor(self._thread, _texts, node_ids)}
        except AWAY:
            raise
        except Exception:  # any exception: the next read must not wait for ever
            logger.exception("the desired states of nodes %s were not read", node_ids)
        if len(node_ids) == 1:
            return {node_ids[0]: None}
        # One node's bad row must not block the others.
        return {key: text for node_id in node_ids for key, text in (await self._texts_of([node_id])).items()}


def _answer(text: str | None, told: Told, failed: Failed) -> None:
    """Call back; an empty text means that the node is gone."""
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
    """Return True if the state is too large for an agent, which then keeps its last state.

    The agent would refuse the frame, and end the assignments that a shortened one leaves out.
    """
    number, most = len(state.assignments), wire.MAX_ASSIGNMENTS
    if number > most:
        name = Node.objects.values_list("name", flat=True).get(pk=node_id)
        logger.error(
            "node %s has %d assignments, an agent accepts %d: its desired state is not sent",
            name,
            number,
            wire.MAX_ASSIGNMENTS,
        )
    return number > wire.MAX_ASSIGNMENTS


_states_of_loops: "WeakKeyDictionary[asyncio.AbstractEventLoop, DesiredStates]" = WeakKeyDictionary()


def of_this_loop() -> DesiredStates:
    """Return the instance of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _states_of_loops:
        _states_of_loops[loop] = DesiredStates()
    return _states_of_loops[loop]
