"""The frames that wait to be sent to the server, by priority; the connection's one writer takes from here.

Six kinds, each with its own guarantee. An event is sent once, on this connection or the next. `observed` is a level:
only the newest matters, so it is a mark here and is read from the node when its turn comes; conditions likewise. Of
health reports, only the newest is sent, once, and to a server that takes them. Usage is a history: each frame has a
sequence number and is kept, and sent again on every new connection, until the server acknowledges that it is stored.
Pieces of jobs' output come last (agent/jobs/sender.py).
"""

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from agent import statefile, wire
from agent.logs import log

# A quarter of an hour of a server's absence; the charts can do without older ones.
MAX_USAGE_FRAMES = 900
MAX_USAGE_BYTES = 16 << 20
# Sent and not acknowledged yet. An agent that reconnects sends its backlog at the pace at which the server stores it: a
# thousand of them that return together wait for it, not it for them.
MAX_IN_FLIGHT = 8
MAX_EVENTS = 256
# Numbers are reserved on disk in blocks, so that a second's frame costs no write.
SEQUENCE_BLOCK = 10_000


class Sequence:
    """Numbers that only grow, across restarts too, even if the clock was set back."""

    def __init__(self, path: Path, *, now_seconds: float) -> None:
        self._path = path
        try:
            reserved = statefile.read(path, int) or 0
        except statefile.Damaged as error:
            log.warning("sequence-file-damaged", reason=str(error))
            reserved = 0
        # Starting from the clock keeps them growing even if the state directory was lost.
        self._next = max(int(now_seconds * 1000), reserved + 1, 1)
        self._reserved = 0

    def next(self) -> int:
        """Return the next number."""
        number = self._next
        if number >= self._reserved:
            self._reserved = number + SEQUENCE_BLOCK
            try:
                statefile.write(self._path, self._reserved)
            except OSError as error:
                # Then the clock alone keeps them growing.
                log.warning("sequence-not-stored", reason=str(error))
        self._next += 1
        return number


class _Kept(NamedTuple):
    seq: int
    text: str


class OutputSource(Protocol):
    """The output of jobs' programs, in pieces."""

    def restart(self) -> None:
        """Begin a new connection."""

    def next(self) -> wire.Output | None:
        """Return the next piece; None if none may be sent now."""


class Outbox:
    """Frames on their way to the server. Not thread-safe: the event loop's."""

    def __init__(
        self,
        observe: Callable[[], wire.Observed],
        conditions: Callable[[], wire.Conditions],
        output: OutputSource | None = None,
    ) -> None:
        self._observe = observe
        self._output = output
        self._observed_waits = False
        self._conditions = conditions
        self._conditions_wait = False
        self._health: str | None = None
        self._takes_health = self._takes_borrowed = False
        self._events: deque[str] = deque(maxlen=MAX_EVENTS)
        self._usage: deque[_Kept] = deque()
        self._usage_bytes = 0
        # The number of frames in `_usage`, from the oldest, that this connection has sent.
        self._usage_sent = 0
        self._filled = asyncio.Event()

    def put(self, event: wire.Event) -> None:
        """Queue the event."""
        text = _encode(event)
        if text is not None:
            self._events.append(text)
            self._filled.set()

    def mark_observed(self) -> None:
        """Queue the state in force; many marks before the writer's turn are one frame."""
        self._observed_waits = True
        self._filled.set()

    def mark_conditions(self) -> None:
        """Queue the conditions; many marks before the writer's turn are one frame."""
        self._conditions_wait = True
        self._filled.set()

    def put_health(self, health: wire.Health) -> None:
        """Queue the health of the GPUs, in place of an older report that was not sent yet."""
        self._health = _encode(health)
        self._filled.set()

    def keep(self, usage: wire.Usage) -> None:
        """Queue this usage, again on each connection, until it is acknowledged or a newer one needs its room."""
        text = _encode(usage)
        if text is None:
            return
        self._usage.append(_Kept(usage.seq, text))
        self._usage_bytes += len(text)
        while len(self._usage) > MAX_USAGE_FRAMES or self._usage_bytes > MAX_USAGE_BYTES:
            self._forget_oldest()
        self._filled.set()

    def acknowledge(self, seq: int) -> None:
        """Forget every usage frame up to and including `seq`."""
        while self._usage and self._usage[0].seq <= seq:
            self._forget_oldest()
        self._filled.set()

    @property
    def unacknowledged(self) -> int:
        """The number of usage frames that the server has not acknowledged as stored."""
        return len(self._usage)

    def restart(self, *, health: bool, borrowed: bool) -> None:
        """Begin a new connection, on which nothing was sent yet.

        `health`, `borrowed`: the server takes health reports, and borrowed memory in usage.
        """
        self._takes_health, self._takes_borrowed = health, borrowed
        self._usage_sent = 0
        if self._output is not None:
            self._output.restart()
        self.mark_observed()
        self.mark_conditions()

    def offer_output(self) -> None:
        """Ask for a piece of output when nothing else waits."""
        self._filled.set()

    async def take(self) -> str:
        """Return the next frame's text, as soon as there is one."""
        while True:
            text = self._pop()
            if text is not None:
                return text
            self._filled.clear()
            await self._filled.wait()

    def _pop(self) -> str | None:
        if self._events:
            return self._events.popleft()
        if self._observed_waits:
            self._observed_waits = False
            if (text := _encode(self._observe())) is not None:
                return text
        if self._conditions_wait:
            self._conditions_wait = False
            if (text := _encode(self._conditions())) is not None:
                return text
        if self._takes_health and self._health is not None:
            text, self._health = self._health, None
            return text
        if self._usage_sent < min(len(self._usage), MAX_IN_FLIGHT):
            self._usage_sent += 1
            text = self._usage[self._usage_sent - 1].text
            return text if self._takes_borrowed else _without_borrowed(text)
        piece = self._output.next() if self._output is not None else None
        return _encode(piece) if piece is not None else None

    def _forget_oldest(self) -> None:
        self._usage_bytes -= len(self._usage.popleft().text)
        self._usage_sent = max(0, self._usage_sent - 1)


def _without_borrowed(text: str) -> str:
    """Return the usage as a server reads it that knows nothing of borrowed memory and remote clients."""
    if '"borrowed":' not in text and '"remote":' not in text:
        return text
    usage = msgspec.json.decode(text, type=wire.Usage)
    items = [msgspec.structs.replace(one, borrowed=msgspec.UNSET, remote=msgspec.UNSET) for one in usage.assignments]
    return wire.encode(msgspec.structs.replace(usage, assignments=items))


def _encode(frame: wire.FromAgent) -> str | None:
    """Return the frame's text; None if it has none: one name that is no text must not end the agent."""
    try:
        return wire.encode(frame)
    except ValueError as error:
        log.warning("frame-not-sent", kind=type(frame).__name__.lower(), reason=str(error))
        return None
