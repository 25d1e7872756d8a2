"""Simulated agents in several processes, which the benchmark tells what to do over pipes."""

import asyncio
import contextlib
import itertools
import multiprocessing
import random
import socket
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import uvloop

from benchmarks.replicas.fleet import LivingAgent
from benchmarks.telemetry.filled import FilledNode
from benchmarks.telemetry.fleet import Agent

PROCESSES = 4
AT_ONCE = 10
LOOK_SECONDS = 0.02
GIVEN_SECONDS = 150.0
TICKS = 50
# Frames that an eager agent sends before the first is acknowledged; a real one sends eight ahead.
AHEAD = 8


class EagerAgent(Agent):
    """An agent that sends its next frame when one is acknowledged."""

    def _hear(self, text: bytes) -> None:
        before = self.acknowledged
        super()._hear(text)
        for _ in range(self.acknowledged - max(before, self.first_seq)):
            self.measure()


class Held(LivingAgent):
    """An agent that stays connected to any web server that accepts, as behind a balancer."""

    look_seconds = 0.2

    def __init__(self, node: FilledNode, ports: list[int]) -> None:
        super().__init__(Agent(node), lambda: accepting(ports))
        self.known = 0

    @property
    def newest(self) -> int:
        """The number of the newest desired state that it has."""
        return max(self.agent.frames, default=0)


def accepting(ports: list[int]) -> int:
    """Return a random port that accepts connections, or any: a balancer passes over a server that refuses."""
    for port in random.sample(ports, len(ports)):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return port
    return ports[0]


class Crowd:
    """The agents of one process. Each public method is a command."""

    def __init__(self, ports: list[int]) -> None:
        self.ports, self.held, self.tasks = ports, list[Held](), list[asyncio.Task[None]]()

    async def eager(self, nodes: list[FilledNode], ports: list[int], seconds: float) -> int:
        """Have agents send frames as fast as they are stored; return how many were in this time."""
        agents = [EagerAgent(node) for node in nodes]
        for agent, port in zip(agents, itertools.cycle(ports)):
            await agent.connect(port)
        for agent in agents:
            for _ in range(AHEAD):
                agent.measure()
        await asyncio.sleep(2)
        before = sum(max(agent.acknowledged, agent.first_seq) for agent in agents)
        await asyncio.sleep(seconds)
        stored = sum(max(agent.acknowledged, agent.first_seq) for agent in agents) - before
        for agent in agents:
            agent.hang_up()
        return stored

    async def grow(self, nodes: list[FilledNode]) -> int:
        """Have these agents live, and measure once a second."""
        made = [Held(node, self.ports) for node in nodes]
        for few in _batches(made):
            self.tasks += [asyncio.ensure_future(one.live()) for one in few]
            await _until(lambda few=few: all(one.agent.ready.is_set() for one in few))
        self.held += made
        if len(self.held) == len(made):
            self.tasks.append(asyncio.ensure_future(self._beat()))
        return len(self.held)

    async def acknowledged(self) -> list[float]:
        """Return the seconds until acknowledgement of the frames since the last call."""
        found = [seconds for one in self.held for seconds in one.agent.ack_seconds]
        for one in self.held:
            one.agent.ack_seconds.clear()
        return found

    async def mark(self) -> int:
        """Remember each agent's newest desired state."""
        for one in self.held:
            one.known = one.newest
        return len(self.held)

    async def wait_for_newer(self) -> list[tuple[float, float, float, int]]:
        """Wait for a newer desired state of each.

        Return its time, those of the agent's last loss and welcome, and how often it was told to come later.
        """
        await _until(lambda: all(one.newest > one.known and not one.agent.socket.closed for one in self.held))
        return [(one.agent.frames[one.newest], one.lost_at, one.welcomed_at, one.throttled) for one in self.held]

    async def _beat(self) -> None:
        begun = time.monotonic()
        for tick in itertools.count():
            for one in self.held[tick % TICKS :: TICKS]:
                if one.agent.ready.is_set() and not one.agent.socket.closed:
                    one.agent.measure()
            # By the clock from the beginning: a timer that ends early must not make more than a frame a second.
            await asyncio.sleep(max(0.0, begun + (tick + 1) / TICKS - time.monotonic()))


def _batches(made: list[Held]) -> Iterator[list[Held]]:
    for first in range(0, len(made), AT_ONCE):
        yield made[first : first + AT_ONCE]


async def _until(condition: Any) -> None:
    deadline = time.monotonic() + GIVEN_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the agents did not come in time")
        await asyncio.sleep(LOOK_SECONDS)


class Crowds:
    """All processes; a command goes to each, and a list of nodes is divided."""

    def __init__(self, pipes: list[Connection]) -> None:
        self._pipes = pipes

    def command(self, name: str, *given: Any, nodes: list[FilledNode] | None = None) -> list[Any]:
        """Return what each process answers. Raises AssertionError with the error of one."""
        for number, pipe in enumerate(self._pipes):
            pipe.send((name, (*([nodes[number :: len(self._pipes)]] if nodes is not None else []), *given)))
        answers = [pipe.recv() for pipe in self._pipes]
        for answer in answers:
            assert not isinstance(answer, Exception), answer
        return answers


@contextlib.contextmanager
def crowds(ports: list[int]) -> Iterator[Crowds]:
    """Start the processes, and end them."""
    # A fork would copy Django's threads and connections.
    context = multiprocessing.get_context("spawn")
    pipes, started = [], []
    for _ in range(PROCESSES):
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, ports), daemon=True)
        process.start()
        pipes.append(ours)
        started.append(process)
    try:
        yield Crowds(pipes)
    finally:
        for process in started:
            process.terminate()
            process.join()


def _serve(pipe: Connection, ports: list[int]) -> None:
    uvloop.run(_obey(pipe, ports))


async def _obey(pipe: Connection, ports: list[int]) -> None:
    crowd, loop = Crowd(ports), asyncio.get_running_loop()
    while True:
        name, given = await loop.run_in_executor(None, pipe.recv)
        try:
            pipe.send(await getattr(crowd, name)(*given))
        except Exception as error:  # noqa: BLE001 - the benchmark raises it
            pipe.send(RuntimeError(repr(error)))
