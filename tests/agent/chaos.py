"""Shared parts of the chaos tests: a changing world of claims, its invariants, and faults."""

import asyncio
import contextlib
import random
import resource
import subprocess
from pathlib import Path

import msgspec
from websockets.exceptions import ConnectionClosed

from agent import statefile, wire
from tests.agent.control import Connection
from tests.agent.stage import GIB, GPULOAD, Stage, eventually

HEALED_SECONDS = 10.0
STATE_FILES = {"agent.json", "desired.json", "usage.seq"}
MOST_CLAIMS = 5

# Kills the agent by SIGKILL after so many executed lines of its own code, before any line there is.
KILLED_AT = """
import os, signal, sys
left = int(sys.argv.pop(1))
def trace(frame, event, argument):
    global left
    code = frame.f_code
    if "/agent/" not in code.co_filename or code.co_name == "<module>":
        return None
    if event == "line":
        left -= 1
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return trace
sys.settrace(trace)
from agent.__main__ import main
sys.exit(main())
"""
# A wall clock with an offset from a file; the monotonic one is the machine's.
WRONG_CLOCK = """
import sys, time
path, right = sys.argv.pop(1), time.time
time.time = lambda: right() + float(open(path).read() or 0)
from agent.__main__ import main
sys.exit(main())
"""


class World:
    """Desired states of one node, present and past, and the states reported as in force."""

    def __init__(self, stage: Stage, seed: int = 0) -> None:
        self.stage = stage
        self.random = random.Random(seed)  # noqa: S311 - a test that can be repeated
        self.frame = 1
        self.wanted: dict[str, wire.Assignment] = {}
        self.ever: dict[str, dict[int, wire.Assignment]] = {}
        # The highest reported generation, by assignment.
        self.told: dict[str, int] = {}

    def want(self, assignment: wire.Assignment) -> wire.Assignment:
        """Want this from the next frame on."""
        self.wanted[assignment.uid] = assignment
        self.ever.setdefault(assignment.uid, {})[assignment.generation] = assignment
        return assignment

    def new(self, **facts: object) -> wire.Assignment:
        return self.want(self.stage.assignment(gpu=self.random.randrange(4), **facts))

    def resize(self, uid: str) -> wire.Assignment:
        before = self.wanted[uid]
        core, gib = self.random.randrange(10, 60), self.random.randrange(2, 6)
        generation = before.generation + 1
        return self.want(
            msgspec.structs.replace(
                before, generation=generation, core_request=core, core_limit=core, memory_bytes=gib * GIB
            )
        )

    def change(self, *, keep: str) -> None:
        """Make a random change: a new claim, another size, an end."""
        others = [uid for uid in self.wanted if uid != keep]
        act = self.random.choice(["new", "resize", "resize", "end"])
        if act == "new" and len(self.wanted) < MOST_CLAIMS:
            self.new()
        elif act == "end" and others:
            del self.wanted[self.random.choice(others)]
        else:
            self.resize(self.random.choice(list(self.wanted)))

    async def send(self, link: Connection) -> None:
        """Send the whole desired state, if the agent is connected."""
        self.frame += 1
        with contextlib.suppress(ConnectionClosed):
            await link.send(wire.Desired(frame=self.frame, assignments=list(self.wanted.values())))

    def listen(self, link: Connection) -> None:
        """Record the agent's reports: it must not take them back."""
        for frame in link.frames:
            for one in frame.assignments if isinstance(frame, wire.Observed) else ():
                if one.state in ("in_force", "over_limit"):
                    self.told[one.uid] = max(self.told.get(one.uid, 0), one.generation)

    def check(self) -> None:
        """Check the invariants, also while no agent runs: no page has an undesired limit, or less than was reported."""
        for uid in self.wanted:
            slot = self.stage.slot(self.wanted[uid])
            if slot is None:
                assert uid not in self.told, f"{uid} was told to be in force, and has no page"
                continue
            meant = self.ever[uid][slot.generation]
            assert (slot.core_limit, slot.memory_bytes) == (meant.core_limit, meant.memory_bytes)
            assert slot.is_open
            assert slot.generation >= self.told.get(uid, 0)

    async def wait_until_healed(self, link: Connection) -> None:
        """Wait until observed equals desired, on the pages and in the agent's reports, and no other files exist."""

        def as_wanted() -> bool:
            frames = [frame for frame in link.frames if isinstance(frame, wire.Observed)]
            seen = {one.uid: (one.generation, one.state) for one in frames[-1].assignments} if frames else {}
            return {uid: facts for uid, facts in seen.items() if facts[1] != "released"} == {
                uid: (one.generation, "in_force") for uid, one in self.wanted.items()
            }

        await eventually(as_wanted, seconds=HEALED_SECONDS)
        claims = {one.claim_uid for one in self.wanted.values()}
        lying = self.stage.run_dir / "claims"
        await eventually(lambda: {path.name for path in lying.iterdir()} == claims, seconds=HEALED_SECONDS)
        self.listen(link)
        self.check()
        stored = statefile.read(self.stage.state_dir / "desired.json", wire.Desired)
        assert stored is not None
        assert {one.uid for one in stored.assignments} == set(self.wanted)
        names = {path.name for path in self.stage.state_dir.iterdir()}
        assert {name for name in names if not name.startswith(".")} <= STATE_FILES


async def settled(stage: Stage, link: Connection, world: World) -> tuple[wire.Assignment, "subprocess.Popen[bytes]"]:
    """Return a claim in force with a program under it."""
    steady = world.new(core_request=30, core_limit=30, memory_bytes=4 * GIB)
    await world.send(link)
    await link.state(steady.uid, "in_force")
    program: subprocess.Popen[bytes] = stage.exec(steady.claim_uid, str(GPULOAD), "--memory", "1GiB")
    await eventually(lambda: stage.totals(steady).memory_bytes >= GIB)
    return steady, program


async def follows(stage: Stage, assignment: wire.Assignment) -> None:
    """Wait until the running program has applied this generation."""
    await eventually(
        lambda: stage.totals(assignment).observed_generation == assignment.generation, seconds=HEALED_SECONDS
    )


def limit_files(pid: int, most: int) -> None:
    """Limit the file size of this process; the hard limit stays, so that it can be reset."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, hard))


class StallingProxy:
    """A proxy between agent and server: while it stalls, connections stay and no data passes, as when a cable is
    pulled.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self._passing = asyncio.Event()
        self._passing.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        """Start it; return its port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def stall(self) -> None:
        self._passing.clear()

    def heal(self) -> None:
        self._passing.set()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        writers = [writer]
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._passing.wait()
                inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._to)
                writers.append(inner_writer)
                await asyncio.gather(self._pipe(reader, inner_writer), self._pipe(inner_reader, writer))
        finally:
            for one in writers:
                one.close()

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._passing.wait()
                writer.write(data)
                await writer.drain()
            writer.write_eof()


def offset(path: Path, seconds: float) -> None:
    """Set the injected clock, atomically."""
    fresh = path.with_suffix(".new")
    fresh.write_text(str(seconds))
    fresh.replace(path)
