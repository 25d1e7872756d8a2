"""Tunnels that this agent dials: a second websocket to the server for each terminal into a run, or stream.

The server cannot reach a node behind NAT. So it asks by the connection that the agent keeps, and the agent dials
`/ws/tunnel/` with its own credential and the ticket of that one tunnel. What a client sends comes as it was sent: text
messages say what it wants, binary ones are typed. A connection that is not read holds the program up, not memory.
"""

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from agent import wire
from agent.jobs.slots import FairSlots
from agent.jobs.streams import MOST_OF_NODE, Streams
from agent.jobs.terminals import NoTerminal, Terminal, decode_asked, decode_resized
from agent.logs import log
from agent.server.rest import is_loopback

if TYPE_CHECKING:
    from agent.jobs.runs import Runs

# Terminals of this node at a time.
MOST_TUNNELS = 32
MOST_MESSAGE_BYTES = 64 << 10
FIRST_SECONDS = 15.0
# Output that is still on its way when the program has ended.
DRAIN_SECONDS = 0.5
KEEPALIVE_SECONDS = 20.0
CLOSE_REFUSED = 4409
TOO_MANY_TERMINALS = "Your tenant has its part of this node's terminals open: close one of them."
TOO_MANY_STREAMS = "Your tenant has its part of this node's connections to notebooks: close some tabs."


class Tunnels:
    """The open tunnels of one node. The event loop's."""

    def __init__(self, runs: "Runs", server: str) -> None:
        self._runs = runs
        self._url = f"ws{server.removeprefix('http')}/ws/tunnel/"
        self.credential = ""
        self._open: set[asyncio.Task[None]] = set()
        self._streams = Streams(runs)
        self._terminal_slots, self._stream_slots = FairSlots(MOST_TUNNELS), FairSlots(MOST_OF_NODE)
        # Connections that only tell a client that there is no slot.
        self._refusal_slots = FairSlots(MOST_OF_NODE)

    def dial(self, frame: wire.Tunnel) -> None:
        """Open this tunnel, or tell its client that its tenant has too many; a flood of them is not answered."""
        owner = self._runs.owner_of(frame.run_uid)
        slots = self._stream_slots if frame.stream else self._terminal_slots
        fits = slots.take(owner)
        if not fits:
            slots = self._refusal_slots
            if not slots.take(owner):
                log.warning("tunnel-not-opened", run=frame.run_uid, reason="too many are open")
                return

        def forget(task: asyncio.Task[None]) -> None:
            self._open.discard(task)
            slots.give_back(owner)

        task = asyncio.ensure_future(self._serve(frame, fits=fits))
        self._open.add(task)
        task.add_done_callback(forget)

    async def _serve(self, frame: wire.Tunnel, *, fits: bool) -> None:
        try:
            async with connect(
                self._url,
                additional_headers={
                    "Authorization": f"Bearer {self.credential}",
                    "X-Gpucloud-Tunnel": frame.uid,
                    "X-Gpucloud-Ticket": frame.ticket,
                },
                max_size=MOST_MESSAGE_BYTES,
                # Of messages that wait here.
                max_queue=4,
                ping_interval=KEEPALIVE_SECONDS,
                # A client that does not read must not look like a lost server.
                ping_timeout=None,
                close_timeout=1,
                compression=None,
                proxy=None if is_loopback(self._url) else True,
            ) as socket:
                if not fits:
                    await socket.close(CLOSE_REFUSED, TOO_MANY_STREAMS if frame.stream else TOO_MANY_TERMINALS)
                    return
                serve = self._streams.serve if frame.stream else self._open_terminal
                await serve(frame.run_uid, socket)
        except (OSError, TimeoutError, WebSocketException) as error:
            log.info("tunnel-ended", run=frame.run_uid, reason=str(error) or type(error).__name__)

    async def _open_terminal(self, run_uid: str, socket: ClientConnection) -> None:
        try:
            async with asyncio.timeout(FIRST_SECONDS):
                asked = decode_asked(await socket.recv())
            terminal = await self._runs.open_terminal(run_uid, asked.command, {"TERM": asked.term})
        except (NoTerminal, OSError, TimeoutError) as error:
            await socket.close(CLOSE_REFUSED, str(error)[:100] or "nothing was asked")
            return
        log.info("terminal-opened", run=run_uid)
        try:
            terminal.resize(asked.columns, asked.rows)
            await _converse(terminal, socket)
        except NoTerminal as error:
            await socket.close(CLOSE_REFUSED, str(error)[:100])
        finally:
            terminal.close()
            log.info("terminal-closed", run=run_uid)


async def _converse(terminal: Terminal, socket: ClientConnection) -> None:
    """Carry both ways until the program, the run or the client has ended."""
    typing, showing = asyncio.ensure_future(_type(terminal, socket)), asyncio.ensure_future(_show(terminal, socket))
    ending = asyncio.ensure_future(terminal.exit_code())
    tasks = (typing, showing, ending)
    try:
        await asyncio.wait((typing, ending), return_when=asyncio.FIRST_COMPLETED)
        if typing.done():
            typing.result()
            return
        # A client that does not read what is left gets the end when it has: the server bounds how long.
        while not showing.done() and not typing.done():
            before = terminal.shown
            await asyncio.wait((showing, typing), timeout=DRAIN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if terminal.shown == before and not terminal.is_sending:
                break
        code = ending.result()
        await socket.send(json.dumps({"exit": code} if code is not None else {"ended": "The run has ended."}))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _show(terminal: Terminal, socket: ClientConnection) -> None:
    async for data in terminal.output():
        terminal.is_sending = True
        await socket.send(data)
        terminal.is_sending = False
        terminal.shown += len(data)


async def _type(terminal: Terminal, socket: ClientConnection) -> None:
    async for message in socket:
        if isinstance(message, bytes):
            with contextlib.suppress(OSError):
                await terminal.write(message)
        else:
            resized = decode_resized(message)
            terminal.resize(resized.columns, resized.rows)
