"""Frames that arrive faster than they are handled: the newest of each level counts, and nothing else is lost."""

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from agent import wire
from apps.nodes.gateway import incoming
from apps.nodes.gateway.incoming import Incoming
from apps.nodes.models import Node
from apps.nodes.providers import node_claims
from tests.cast import Cast, Machine
from tests.nodes.agents import Agent, in_database

Agents = Callable[..., Agent]
EVENT = wire.Event(at=1, code="nvml-lost", detail="gone")


def observed(frame: int) -> wire.Observed:
    return wire.Observed(frame=frame, assignments=[])


async def taken(frames: Incoming[wire.FromAgent]) -> list[wire.FromAgent]:
    frames.close()
    found = []
    while (frame := await frames.take()) is not None:
        found.append(frame)
    return found


async def test_of_levels_that_wait_the_newest_is_left_and_everything_else_keeps_its_order() -> None:
    frames: Incoming[wire.FromAgent] = Incoming()
    events = [wire.Event(at=number, code="x", detail="y") for number in range(3)]
    healthy, sick = wire.Conditions(conditions=[]), wire.Conditions(conditions=[])
    said = (events[0], observed(1), healthy, events[1], observed(2), events[2], observed(3), sick)
    for frame in said:
        await frames.put(frame)
    assert await taken(frames) == [*events, observed(3), sick]


async def test_who_sends_more_than_waits_is_not_read_on_until_there_is_room() -> None:
    frames: Incoming[wire.FromAgent] = Incoming()
    for _ in range(incoming.MOST_WAITING):
        await frames.put(EVENT)
    late = asyncio.ensure_future(frames.put(EVENT))
    # A level always has room: at most one of each waits.
    await frames.put(observed(1))
    await asyncio.sleep(0)
    assert not late.done()
    await frames.take()
    await late
    assert len(await taken(frames)) == incoming.MOST_WAITING + 1


class Slow:
    """A wrapper of the registered handlers: the first `observed` blocks until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.frames: list[int] = []
        self.begun, self.go_on = threading.Event(), threading.Event()
        self._claims = node_claims.get()
        monkeypatch.setattr(node_claims, "get", lambda: self)

    def observed(self, node: Node, frame: wire.Observed) -> None:
        self.frames.append(frame.frame)
        self.begun.set()
        assert self.go_on.wait(60)
        self._claims.observed(node, frame)

    def __getattr__(self, name: str) -> object:
        return getattr(self._claims, name)


async def send_while_busy(agents: Agents, slow: Slow, frames: int) -> Agent:
    """Send one frame, and the others while it is being handled."""
    agent = agents()
    await agent.greet()
    await agent.say(observed(1))
    assert await asyncio.to_thread(slow.begun.wait, 60)
    for frame in range(2, frames + 1):
        await agent.say(observed(frame))
    await agent.say(wire.Usage(seq=1, at=time.time(), gpus=[], assignments=[]))
    # The application's task reads the frames.
    for _ in range(10 * frames):
        await asyncio.sleep(0)
    slow.go_on.set()
    assert isinstance(await agent.hear(), wire.Ack)
    return agent


async def test_while_one_observation_is_stored_only_the_newest_of_the_others_waits(
    agents: Agents, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch)
    await send_while_busy(agents, slow, 79)
    assert slow.frames == [1, 79]
    assert (await in_database(lambda: Node.objects.get(pk=machine.node.pk))).observed_frame == 79


async def test_if_observations_were_no_level_each_would_be_stored(
    agents: Agents, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming, "LEVELS", ())
    slow = Slow(monkeypatch)
    await send_while_busy(agents, slow, 9)
    assert slow.frames == list(range(1, 10))


async def test_what_an_agent_said_before_it_left_is_stored(
    agents: Agents, real_cast: Cast, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch)
    agent = agents()
    await agent.greet()
    await agent.say(observed(1))
    assert await asyncio.to_thread(slow.begun.wait, 60)
    await agent.say(EVENT)
    await agent.say(observed(2))
    await agent.say(wire.Event(at=1, code="clock-off", detail="far"))
    left = asyncio.ensure_future(agent.hang_up())
    await asyncio.sleep(0.1)
    slow.go_on.set()
    await left
    assert slow.frames == [1, 2]
    rows = await in_database(lambda: real_cast.olga.get("audit/?object_type=node&limit=50").body["results"])
    actions = [row["action"] for row in rows]
    assert [actions.count(f"agent.{code}") for code in ("nvml-lost", "clock-off")] == [1, 1]
