"""Simulated agents and browsers: the messages they send and receive."""

import asyncio
import contextlib
import re
import time
from dataclasses import dataclass, field

from agent import wire
from benchmarks.telemetry.filled import SECRET, FilledNode
from benchmarks.telemetry.sockets import Socket, make_frame, open_socket

ACK = b'"type":"ack","v":1,"seq":'
AT = re.compile(rb'"at": ?([0-9.]+)')
CLAIM = re.compile(rb'"claim": ?"([0-9a-f-]+)"')
# Frames leave in this many groups a second, so that load is spread.
TICKS = 100
GIB = 1 << 30


class Agent:
    """One node's agent: answers desired states at once, and measures once a second."""

    def __init__(self, node: FilledNode) -> None:
        self.node = node
        self.socket: Socket
        self.seq = self.first_seq = int(time.time() * 1000)
        self.acknowledged = 0
        self.ack_seconds: list[float] = []
        # Desired generations by assignment, and the time of each; frames likewise.
        self.heard_at: dict[tuple[str, int], float] = {}
        self.frames: dict[int, float] = {}
        self._sent_at: dict[int, float] = {}
        self.welcome = asyncio.Event()
        self.ready = asyncio.Event()
        text = wire.encode(usage(node))
        self._head, self._middle, self._tail = (
            part.encode() for part in re.split(r"1111111111111|1111111111\.5", text)
        )

    async def open(self, port: int) -> None:
        """Connect and send hello.

        Raises OSError.
        """
        self.welcome.clear()
        self.ready.clear()
        credential = f"Bearer gpn_{self.node.uid}.{SECRET}"
        self.socket = await open_socket(port, "/ws/agent/", self._hear, Authorization=credential)
        self.socket.send(make_frame(wire.encode(hello(self.node)).encode()))

    async def connect(self, port: int) -> None:
        """Connect and wait for the desired state."""
        await self.open(port)
        await asyncio.wait_for(self.ready.wait(), 120)

    async def until(self, event: asyncio.Event) -> None:
        """Wait until the event is set.

        Raises ConnectionError if the server hangs up before.
        """
        while not event.is_set():
            if self.socket.closed:
                raise ConnectionError(self.socket.closed)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), 0.25)

    def hang_up(self) -> None:
        """Close the connection if there is one."""
        if hasattr(self, "socket"):
            self.socket.close()

    def measure(self) -> None:
        """Send this second's frame."""
        self.seq += 1
        now = time.time()
        self._sent_at[self.seq] = now
        text = b"%b%013d%b%.3f%b" % (self._head, self.seq, self._middle, now, self._tail)
        self.socket.send(make_frame(text))

    def _hear(self, text: bytes) -> None:
        if ACK in text:
            seq = int(text.partition(ACK)[2].rstrip(b"}"))
            now = time.time()
            for number in range(max(self.acknowledged, self.first_seq) + 1, seq + 1):
                self.ack_seconds.append(now - self._sent_at.pop(number))
            self.acknowledged = seq
            return
        frame = wire.decode_from_server(text)
        if isinstance(frame, wire.Welcome):
            self.welcome.set()
        if isinstance(frame, wire.Desired):
            now = time.time()
            self.frames.setdefault(frame.frame, now)
            for item in frame.assignments:
                self.heard_at.setdefault((item.claim_uid, item.generation), now)
            said = [
                wire.Observation(uid=one.uid, generation=one.generation, state="in_force") for one in frame.assignments
            ]
            self.socket.send(make_frame(wire.encode(wire.Observed(frame=frame.frame, assignments=said)).encode()))
            self.ready.set()


def hello(node: FilledNode) -> wire.Hello:
    """Return hello as the filled database has it."""
    gpus = [
        wire.Gpu(uuid=uuid, index=index, model="NVIDIA A100", memory_bytes=80 * GIB)
        for index, uuid in enumerate(node.gpus)
    ]
    return wire.Hello(
        agent_version="bench", driver_version="1", hostname=node.name, run_dir="/run/gpucloud",
        library="/usr/lib/libvcuda.so", simulated=True, gpus=gpus,
    )  # fmt: skip


def usage(node: FilledNode) -> wire.Usage:
    """Return a frame as full as a real one, with marks for the number and the time."""
    return wire.Usage(
        seq=1111111111111,
        at=1111111111.5,
        gpus=[
            wire.GpuUsage(
                uuid=uuid, core_percent=61.25, memory_bytes=17 * GIB + 12345, power_watts=243.125,
                temperature_celsius=61.0, sm_clock_mhz=1410, memory_clock_mhz=1593,
            )
            for uuid in node.gpus
        ],
        assignments=[
            wire.AssignmentUsage(
                uid=uid, core_percent=30.62, core_limit_percent=50, throttled_percent=1.25, memory_bytes=8 * GIB + 4321,
                memory_limit_bytes=16 * GIB, processes=1, gpu_time_ms=306.2,
            )
            for uid in node.assignments
        ],
    )  # fmt: skip


@dataclass
class Browser:
    """An open page that watches a node or a claim."""

    query: str
    cookie: str
    # The claim that a tenant's page sees; None: an operator's.
    claim: str | None
    lags: list[float] = field(default_factory=list)
    foreign: int = 0
    socket: Socket | None = None

    async def connect(self, port: int) -> None:
        """Open the page's socket."""
        self.socket = await open_socket(port, f"/ws/live/?{self.query}", self._hear, Cookie=f"sessionid={self.cookie}")

    def _hear(self, text: bytes) -> None:
        if b'"usage"' not in text or (at := AT.search(text)) is None:
            return
        self.lags.append(time.time() - float(at[1]))
        if self.claim is not None:
            self.foreign += sum(found != self.claim.encode() for found in CLAIM.findall(text))


async def beat(agents: list[Agent], until: float) -> float:
    """Make each agent measure once a second until then; return the longest delay of the generator itself."""
    groups = [agents[number::TICKS] for number in range(TICKS)]
    begin, late, tick = time.monotonic(), 0.0, 0
    while (now := time.monotonic()) < until:
        due = begin + tick / TICKS
        if now < due:
            await asyncio.sleep(due - now)
        late = max(late, time.monotonic() - due)
        for agent in groups[tick % TICKS]:
            if not agent.socket.closed:
                agent.measure()
        tick += 1
    return late
