"""Many open overviews, half of operators and half of tenants' members, as browsers keep them open.

Each has its websocket, refreshes its live fragment every five seconds, and when a claim changed, at most every 0.7 s;
an operator's, which shows every node, pauses as long as a browser was observed to (`static/js/live.js`, part `living`).
A claim is resized each second; the lag is counted from sending the PATCH.
"""

import asyncio
import gzip
import time
from contextlib import suppress
from dataclasses import dataclass, field

from benchmarks.pages.beating import resize
from benchmarks.report import Row, quantile
from benchmarks.telemetry.costs import cpu_seconds
from benchmarks.telemetry.sockets import Socket, open_socket
from benchmarks.telemetry.stage import Stage

REFRESH_SECONDS = 5.0
LEAST_SECONDS = 0.7
LEAST_OF_OPERATORS_SECONDS = 3.5
REQUEST = (
    "GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nCookie: sessionid={cookie}\r\nHX-Request: true\r\n"
    "Accept-Encoding: gzip\r\n{more}\r\n"
)


@dataclass
class Dashboard:
    """One open page. A member's receives changes of `own` claims only; None: an operator's."""

    port: int
    cookie: str
    own: frozenset[str] | None
    told: list[float] = field(default_factory=list)
    shown: list[float] = field(default_factory=list)
    answers: list[float] = field(default_factory=list)
    foreign: int = 0
    largest: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def live(self, sent: dict[str, float], until: float, first: float) -> None:
        """Stay open until then; `first` is the time of the first refresh, so that pages are spread."""
        self._sent = sent
        socket = await open_socket(self.port, "/ws/live/?claims=all", self._hear, Cookie=f"sessionid={self.cookie}")
        await asyncio.sleep(first)
        http = await asyncio.open_connection("127.0.0.1", self.port)
        while (now := time.monotonic()) < until:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.changed.wait(), min(REFRESH_SECONDS, until - now))
            since, self._since = self._since, None
            self.changed.clear()
            asked = time.monotonic()
            try:
                await self._ask(*http)
            except (asyncio.IncompleteReadError, ConnectionError):
                # The server closes a connection after five idle seconds; a browser then opens another one, too.
                http[1].close()
                http = await asyncio.open_connection("127.0.0.1", self.port)
                await self._ask(*http)
            self.answers.append(time.monotonic() - asked)
            if since is not None:
                self.shown.append(time.time() - since)
            least = LEAST_OF_OPERATORS_SECONDS if self.own is None else LEAST_SECONDS
            await asyncio.sleep(max(0.0, asked + least - time.monotonic()))
        http[1].close()
        self._end(socket)

    _since: float | None = None
    _sent: dict[str, float] = field(default_factory=dict)
    _at: str = ""

    def _end(self, socket: Socket) -> None:
        assert not socket.closed, socket.closed
        socket.close()

    def _hear(self, text: bytes) -> None:
        uid = text.partition(b'"uid": "')[2][:36].decode()
        if self.own is not None and uid not in self.own:
            self.foreign += 1
        if uid in self._sent:
            self.told.append(time.time() - self._sent[uid])
            self._since = self._since or self._sent[uid]
        # As the page does: a fragment made before this moment is too old.
        at = text.partition(b'"at": ')[2].rstrip(b"}").decode()
        self._at = f"X-Not-Before: {at}\r\n"
        self.changed.set()

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(REQUEST.format(port=self.port, cookie=self.cookie, more=self._at).encode())
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert b" 200 " in head[:20], head[:300]
        size = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
        body = await reader.readexactly(size)
        self.largest = max(self.largest, size)
        assert b"content-encoding: gzip" in head, head
        if not self.answers:
            assert b"Needs attention" in gzip.decompress(body)


async def measure(ready: Stage, count: int, seconds: float) -> Row:
    """Measure this many dashboards for this long; 0 gives the cost of the fleet alone."""
    mine = _readers(ready)
    boards = [Dashboard(ready.port, *mine[number % len(mine)]) for number in range(count)]
    # The first seconds, in which all connect, do not count.
    warm = 5 + count / 20
    sent: dict[str, float] = {}
    until = time.monotonic() + warm + seconds
    work = [asyncio.ensure_future(board.live(sent, until, 5 * at / max(1, count))) for at, board in enumerate(boards)]
    await asyncio.sleep(warm)
    for board in boards:
        for figures in (board.told, board.shown, board.answers):
            del figures[1:]
    before, begun = cpu_seconds(ready), time.monotonic()
    # A different limit each time: an unchanged one sends no message.
    await _change(ready, sent, begun + seconds - 2, limit=51 if count else 52)
    await asyncio.sleep(max(0.0, begun + seconds - time.monotonic()))
    after, wall = cpu_seconds(ready), time.monotonic() - begun
    await asyncio.gather(*work)
    told, shown, answers = (
        [1000 * value for board in boards for value in getattr(board, figures)] or [0.0]
        for figures in ("told", "shown", "answers")
    )
    return {
        "dashboards": count, "seconds": round(wall), "parts asked for": len(answers) if count else 0,
        "told p50 ms": quantile(told, 0.5), "told p95 ms": quantile(told, 0.95),
        "shown p50 ms": quantile(shown, 0.5), "shown p95 ms": quantile(shown, 0.95),
        "answer p50 ms": quantile(answers, 0.5), "answer p95 ms": quantile(answers, 0.95),
        "of others": sum(board.foreign for board in boards), "part KiB": max([b.largest for b in boards] or [0]) / 1024,
        **{f"{who} CPU %": (after[who] - before[who]) * 100 / wall for who in after},
    }  # fmt: skip


def _readers(ready: Stage) -> list[tuple[str, frozenset[str] | None]]:
    """Return cookies with the reader's claims: operator, member, operator, member of the next tenant, and so on."""
    tenants = len(ready.filled.cookies)
    every = [claim for node in ready.filled.nodes for claim in node.claims]
    found: list[tuple[str, frozenset[str] | None]] = []
    for number, cookie in enumerate(ready.filled.cookies):
        found += [(ready.filled.cookie, None), (cookie, frozenset(every[number::tenants]))]
    return found


async def _change(ready: Stage, sent: dict[str, float], until: float, *, limit: int) -> None:
    """Resize another claim each second, of every tenant in turn."""
    claims = [claim for node in ready.filled.nodes for claim in node.claims]
    number = 0
    while time.monotonic() < until:
        claim, number = claims[number % len(claims)], number + 1
        sent[claim] = time.time()
        await asyncio.to_thread(resize, ready.port, ready.filled.token, claim, limit)
        await asyncio.sleep(1)
