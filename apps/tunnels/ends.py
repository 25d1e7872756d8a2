"""The two ends of a tunnel, in whichever server processes the client and the node are connected to.

They talk over the hint bus, which may lose messages and stores none. So messages are numbered, and a tunnel of which
one was lost ends; and an end sends only as much as the other has given credit for, so that a client that does not read
costs WINDOW_BYTES here, then the node's connection is not read either, and at last the program waits.

The client's end lives in one event loop and decides alone which connection of a node is the tunnel's other end: the
first with its ticket, of its node. Nothing needs to be stored for that, and a server that is killed leaves nothing.
"""

import asyncio
import contextlib
import hmac
import secrets
import time
import uuid
from collections import deque
from typing import Any, NamedTuple

from redis.exceptions import RedisError

from gpucloud import hints

WINDOW_BYTES = 256 << 10
# Of one message, and what a message costs beside its bytes: a flood of empty ones is bounded, too.
MOST_MESSAGE_BYTES, COST = 64 << 10, 64
# Each end says that it lives, and ends if the other has not for so long.
ALIVE_SECONDS, SILENT_SECONDS = 10.0, 35.0
JOIN_SECONDS = 15.0

LOST = "a part of the tunnel was lost between two servers: open it again"
GONE = "the other end's server is gone: open it again"
AWAY = "the message bus of the servers cannot be reached: try again"
NO_ANSWER = "the node did not open the tunnel: its agent is away, or is older than the server"


class Ended(Exception):
    """End of the tunnel; the message says why."""


class Message(NamedTuple):
    """One websocket message, as it came."""

    data: bytes
    is_text: bool

    @property
    def cost(self) -> int:
        """The part of the window that it takes."""
        return len(self.data) + COST


class End:
    """One end of a tunnel. The event loop's."""

    def __init__(self, group: str) -> None:
        self._group = group
        # The other end's, once it is known.
        self.other = ""
        self._credit, self._room = WINDOW_BYTES, asyncio.Event()
        self._came: asyncio.Queue[Message | str] = asyncio.Queue()
        self._sent = self._heard = 0
        self._heard_at = self.moved_at = time.monotonic()
        self._hear = self._take
        # The costs of messages that a page has, but has not drawn; None where who takes a message has read it.
        self.drawing: deque[int] | None = None

    async def open(self) -> None:
        """Listen to the other end."""
        await hints.bus().join(self._group, self._hear)

    async def close(self, why: str) -> None:
        """Tell the other end, if there is one."""
        if self.other:
            # Otherwise it notices the silence.
            with contextlib.suppress(Ended):
                await self._publish({"type": "end", "why": why})
        await hints.bus().leave(self._group, self._hear)

    async def send(self, message: Message) -> None:
        """Send a message once the other end has room for it. Raises Ended."""
        if len(message.data) > MOST_MESSAGE_BYTES:
            raise Ended(f"a message of a tunnel has at most {MOST_MESSAGE_BYTES >> 10} KiB")
        while self._credit < message.cost:
            self._room.clear()
            await self._room.wait()
        self._credit -= message.cost
        self._sent += 1
        self.moved_at = time.monotonic()
        await self._publish({"type": "data", "n": self._sent, "data": message.data, "text": message.is_text})

    async def receive(self) -> Message:
        """Return the next message. Raises Ended."""
        found = await self._came.get()
        if isinstance(found, str):
            raise Ended(found)
        return found

    def stop(self, why: str) -> None:
        """Have `receive` raise Ended after what has come."""
        self._came.put_nowait(why)

    @property
    def has_message(self) -> bool:
        """True if `receive` would not wait."""
        return not self._came.empty()

    async def give_credit(self, cost: int) -> None:
        """Let the other end send as much again. Raises Ended."""
        self.moved_at = time.monotonic()
        await self._publish({"type": "credit", "cost": cost})

    async def keep_alive(self) -> None:
        """Say that this end lives, and end when the other has been silent. Raises Ended."""
        while True:
            await asyncio.sleep(ALIVE_SECONDS)
            await self._publish({"type": "alive"})
            if time.monotonic() - self._heard_at > SILENT_SECONDS:
                raise Ended(GONE)

    async def _publish(self, message: hints.Message) -> None:
        try:
            await hints.bus().publish([(self.other, message)])
        except (RedisError, OSError, TimeoutError) as error:
            raise Ended(AWAY) from error

    def _take(self, message: hints.Message) -> None:
        self._heard_at = time.monotonic()
        match message:
            case {"type": "data", "n": number, "data": data, "text": is_text}:
                self._heard += 1
                lost = number != self._heard
                self._came.put_nowait(LOST if lost else Message(bytes(data), bool(is_text)))
            case {"type": "credit", "cost": cost}:
                self._credit += cost
                self._room.set()
            case {"type": "end", "why": why}:
                self._came.put_nowait(str(why))
            case _:
                self._take_other(message)

    def _take_other(self, message: hints.Message) -> None:
        """Take a message of the opening."""


class ClientEnd(End):
    """The end at the client, which awaits its node."""

    def __init__(self, node_pk: int) -> None:
        self.uid, self.ticket = str(uuid.uuid4()), secrets.token_urlsafe(32)
        super().__init__(client_group(self.uid))
        self._node_pk = node_pk
        self._joined = asyncio.Event()
        self._answers: set[asyncio.Task[None]] = set()

    async def await_node(self) -> None:
        """Return once the node has dialled. Raises Ended."""
        try:
            await asyncio.wait_for(self._joined.wait(), JOIN_SECONDS)
        except TimeoutError as error:
            raise Ended(NO_ANSWER) from error

    def _take_other(self, message: hints.Message) -> None:
        match message:
            case {"type": "dial", "node": node_pk, "ticket": ticket, "from": group}:
                fits = not self.other and node_pk == self._node_pk
                is_first = fits and hmac.compare_digest(str(ticket).encode(), self.ticket.encode())
                if is_first:
                    self.other = group
                task = asyncio.ensure_future(self._answer(group, is_first))
                self._answers.add(task)
                task.add_done_callback(self._answers.discard)

    async def _answer(self, group: str, is_first: bool) -> None:
        try:
            await hints.bus().publish([(group, {"type": "joined" if is_first else "refused"})])
        except (RedisError, OSError, TimeoutError):
            return
        if is_first:
            self._joined.set()


class NodeEnd(End):
    """The end at the node, which joins a client's."""

    def __init__(self, uid: str) -> None:
        super().__init__(f"tunnel-{uid}-{uuid.uuid4()}")
        self._client = client_group(uid)
        self._answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def dial(self, *, node_pk: int, ticket: str) -> None:
        """Join the client's end by its ticket. Raises Ended."""
        asked: dict[str, Any] = {"type": "dial", "node": node_pk, "ticket": ticket, "from": self._group}
        try:
            await hints.bus().publish([(self._client, asked)])
            is_welcome = await asyncio.wait_for(self._answer, JOIN_SECONDS)
        except (RedisError, OSError) as error:
            raise Ended(AWAY) from error
        except TimeoutError as error:
            raise Ended("nobody waits for this tunnel") from error
        if not is_welcome:
            raise Ended("the ticket is not valid for this node, or was used")
        self.other = self._client

    def _take_other(self, message: hints.Message) -> None:
        if message["type"] in ("joined", "refused") and not self._answer.done():
            self._answer.set_result(message["type"] == "joined")


def client_group(uid: str) -> str:
    """Return the group in which the client's end of a tunnel listens."""
    return f"tunnel-{uid}"
