"""Load generator: clients with one kept connection each, and one request at a time.

It shares the cores with the server, so it does as little as possible: the caller makes the requests' bytes, and of
answers only the end and the status are parsed.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import uvloop

WARM_UP_SECONDS = 2.0

# Returns a client's next request, by number.
Requests = Callable[[int], bytes]


@dataclass
class Measured:
    """Measurements of the clients after the warm-up; `asked` counts all requests."""

    seconds: float
    asked: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)

    @property
    def per_second(self) -> float:
        return len(self.latencies_ms) / self.seconds


class Client(asyncio.Protocol):
    """A connection that sends the next request when the previous answer is complete."""

    def __init__(self, number: int, requests: Requests, measured: Measured, begin: float, end: float) -> None:
        self.number, self.requests, self.measured = number, requests, measured
        self.begin, self.end = begin, end
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._received = b""
        self._sent_at = 0.0
        self._transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is one without inheriting from it.
        self._transport = cast(asyncio.WriteTransport, transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found or len(body) < length_of(head):
            return
        now = time.perf_counter()
        if self.begin <= self._sent_at and now <= self.end:
            self.measured.latencies_ms.append((now - self._sent_at) * 1000)
            self.measured.statuses[int(head[9:12])] += 1
        self._received = b""
        if now < self.end:
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None and time.perf_counter() >= self.end:
            self.done.set_result(None)
        else:
            self.done.set_exception(ConnectionError(f"the server hung up on client {self.number}: {exc}"))

    def _send(self) -> None:
        self.measured.asked += 1
        self._sent_at = time.perf_counter()
        self._transport.write(self.requests(self.number))


def length_of(head: bytes) -> int:
    """Return the length that an answer's head announces; the server always sends one."""
    lowered = head.lower()
    at = lowered.index(b"content-length:") + 15
    end = lowered.find(b"\r\n", at)
    return int(lowered[at : end if end > 0 else None])


def drive(port: int, requests: Requests, *, clients: int, seconds: float) -> Measured:
    """Run the clients for this long, after a warm-up.

    Raises ConnectionError if the server hangs up.
    """
    return uvloop.run(measure(port, requests, clients, seconds))


async def measure(
    port: int, requests: Requests, clients: int, seconds: float, *, warm_up: float = WARM_UP_SECONDS
) -> Measured:
    """Run the clients as `drive` does, in this loop."""
    loop = asyncio.get_running_loop()
    measured = Measured(seconds)
    begin = time.perf_counter() + warm_up
    protocols = []
    for number in range(clients):
        _, protocol = await loop.create_connection(
            lambda number=number: Client(number, requests, measured, begin, begin + seconds),  # type: ignore[misc]
            "127.0.0.1",
            port,
        )
        protocols.append(protocol)
    async with asyncio.timeout(warm_up + seconds + 30):
        await asyncio.gather(*(protocol.done for protocol in protocols))
    return measured
