"""Streams: tunnels that carry the bytes of one connection to a run's notebook, as they are.

What the server does not read is not read from Jupyter, and the other way round: memory is bounded by small buffers.
"""

import asyncio
import contextlib
from collections import Counter
from typing import TYPE_CHECKING

from websockets.asyncio.client import ClientConnection

from agent.jobs.notebooks import NoNotebook
from agent.logs import log

if TYPE_CHECKING:
    from agent.jobs.runs import Runs

# At a time: a browser has a few for pages and files, and one for each open kernel. The tenants share those of a node.
MOST_OF_NODE, MOST_OF_RUN = 256, 64
CHUNK_BYTES = 32 << 10
CLOSE_REFUSED = 4409
# The server tells the end of the connection from a loss by these words.
CLOSED = "closed by the notebook"


class Streams:
    """The streams of one node. The event loop's."""

    def __init__(self, runs: "Runs") -> None:
        self._runs = runs
        self._open: Counter[str] = Counter()

    async def serve(self, run_uid: str, socket: ClientConnection) -> None:
        """Connect this tunnel with the run's notebook, and carry both ways until one of them closes."""
        self._open[run_uid] += 1
        try:
            if self._open[run_uid] > MOST_OF_RUN:
                raise NoNotebook("The notebook has too many connections: close some of its tabs.")
            reader, writer = await asyncio.open_unix_connection(
                sock=self._runs.connect_notebook(run_uid), limit=CHUNK_BYTES
            )
        except (NoNotebook, OSError) as error:
            log.info("notebook-not-reached", run=run_uid, reason=str(error))
            await socket.close(CLOSE_REFUSED, str(error)[:100])
        else:
            await _carry(reader, writer, socket)
        finally:
            self._open[run_uid] -= 1
            self._open += Counter()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, socket: ClientConnection) -> None:
    tasks = [asyncio.ensure_future(_carry_out(reader, socket)), asyncio.ensure_future(_carry_in(writer, socket))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await socket.close(reason=CLOSED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _carry_out(reader: asyncio.StreamReader, socket: ClientConnection) -> None:
    while data := await reader.read(CHUNK_BYTES):
        await socket.send(data)


async def _carry_in(writer: asyncio.StreamWriter, socket: ClientConnection) -> None:
    async for message in socket:
        if isinstance(message, bytes):
            writer.write(message)
            await writer.drain()
