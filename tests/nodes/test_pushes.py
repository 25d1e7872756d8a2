"""Pushes to agents: read together and late, only the newest sent, and never waited for."""

import asyncio
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest
from django.db import OperationalError

from agent import wire, wire_bounds
from apps.nodes.gateway import desired_states, outgoing, reconnect_throttle
from apps.nodes.gateway.desired_states import DesiredStates
from apps.nodes.gateway.outgoing import Outgoing
from apps.nodes.models.node import hint_group
from apps.nodes.providers import node_claims
from gpucloud import hints
from gpucloud.asgi import application
from tests.cast import Machine, hello
from tests.nodes.agents import Agent

Agents = Callable[..., Agent]


class Reads:
    """A stand-in for the database: it records queries, and answers only when allowed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[list[int]] = []
        self.begun, self.let = asyncio.Queue[None](), threading.Semaphore(0)
        self._loop = asyncio.get_running_loop()
        monkeypatch.setattr(desired_states, "_texts", self._texts)

    def _texts(self, node_ids: Sequence[int]) -> dict[int, str]:
        self.asked.append(list(node_ids))
        number = len(self.asked)
        self._loop.call_soon_threadsafe(self.begun.put_nowait, None)
        assert self.let.acquire(timeout=10)
        return {node_id: f"{node_id} by read {number}" for node_id in node_ids}


def fail() -> None:
    raise AssertionError("it could be read")


async def eventually(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not what():  # noqa: ASYNC110 - whatever is waited for
            await asyncio.sleep(0.01)


async def test_who_asks_while_it_is_read_is_told_of_a_later_read_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads, reader, told = Reads(monkeypatch), DesiredStates(), list[str]()
    tell = told.append
    reader.ask(7, tell, fail)
    await reads.begun.get()
    for _ in range(5):
        reader.ask(7, tell, fail)
    reads.let.release(2)
    await eventually(lambda: len(told) == 2)
    assert told == ["7 by read 1", "7 by read 2"]


async def test_many_that_ask_together_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desired_states, "AT_ONCE", 3)
    reads, reader = Reads(monkeypatch), DesiredStates()
    reads.let.release(9)
    told: dict[int, list[str]] = {node_id: [] for node_id in range(1, 8)}
    for node_id, said in told.items():
        reader.ask(node_id, said.append, fail)
    await eventually(lambda: all(told.values()))
    assert reads.asked == [[1, 2, 3], [4, 5, 6], [7]]


async def test_a_database_that_is_away_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desired_states, "RETRY_SECONDS", 0.05)
    tries, told = list[int](), list[str]()

    def read(node_ids: Sequence[int]) -> dict[int, str]:
        tries.append(1)
        if len(tries) < 3:
            raise OperationalError("away")
        return {7: "at last"}

    monkeypatch.setattr(desired_states, "_texts", read)
    DesiredStates().ask(7, told.append, fail)
    await eventually(lambda: bool(told))
    assert (told, len(tries)) == (["at last"], 3)


async def test_a_node_that_cannot_be_read_hears_so_and_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(node_ids: Sequence[int]) -> dict[int, str]:
        if 7 in node_ids:
            raise ValueError("an odd row")
        return {node_id: f"{node_id}" for node_id in node_ids if node_id != 8}

    monkeypatch.setattr(desired_states, "_texts", read)
    reader, failed = DesiredStates(), list[int]()
    told: dict[int, list[str]] = {node_id: [] for node_id in (6, 7, 8, 9)}
    for node_id, said in told.items():
        reader.ask(node_id, said.append, partial(failed.append, node_id))
    await eventually(lambda: bool(told[9]))
    # 8 is gone: that is not a failure.
    assert (told, failed) == ({6: ["6"], 7: [], 8: [], 9: ["9"]}, [7])


@pytest.mark.parametrize("most", [1, 2])
async def test_a_node_with_more_than_its_agent_takes_keeps_what_it_was_told(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, most: int
) -> None:
    state = wire.Desired(frame=1, assignments=[wire_bounds.LONGEST] * 2)
    monkeypatch.setattr(node_claims.get(), "desired", lambda node_ids: dict.fromkeys(node_ids, state))
    monkeypatch.setattr(wire, "MAX_ASSIGNMENTS", most)
    reader, told = DesiredStates(), list[str]()
    reader.ask(machine.node.pk, told.append, fail)
    await eventually(lambda: reader._reading is None)
    assert told == ([] if most == 1 else [wire.encode(state)])
    assert ("node gpu1 has 2 assignments, an agent accepts 1" in caplog.text) == (most == 1)


async def test_an_agent_whose_node_cannot_be_read_is_told_to_come_again(
    agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(node_ids: Sequence[int]) -> dict[int, str]:
        raise ValueError("an odd row")

    with monkeypatch.context() as context:
        context.setattr(desired_states, "_texts", read)
        agent = await agents().connect()
        await agent.say(hello("gpu1"))
        message = await agent.socket.receive_output(timeout=5)
        # The end may overtake the welcome.
        if message["type"] == "websocket.send":
            message = await agent.socket.receive_output(timeout=5)
        assert (message["type"], message["code"]) == ("websocket.close", wire.CLOSE_BUSY)
    await agents().greet()


async def test_of_what_an_agent_did_not_read_the_newest_is_said_and_nothing_after_the_end() -> None:
    sent, out = list[Any](), Outgoing()

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    out.welcome(node_uid=str(uuid.uuid4()), node_name="n")
    for number in range(1000):
        out.desired(f"state {number}")
        out.ack(number)
    writing = asyncio.ensure_future(out.write(send))
    await eventually(lambda: len(sent) == 3)
    assert isinstance(wire.decode_from_server(sent[0]["text"]), wire.Welcome)
    assert sent[1]["text"] == "state 999"
    assert wire.decode_from_server(sent[2]["text"]) == wire.Ack(seq=999)
    out.end(4001, "first")
    out.end(4002, "second")
    out.desired("too late")
    await asyncio.wait_for(writing, 10)
    assert sent[3:] == [{"type": "websocket.close", "code": 4001, "reason": "first"}]


class Deaf:
    """An agent that says hello and reads only that it is connected."""

    def __init__(self, machine: Machine) -> None:
        self.said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        headers = [(b"authorization", f"Bearer gpn_{machine.node.uid}.secret".encode())]
        scope = {"type": "websocket", "path": "/ws/agent/", "query_string": b"", "headers": headers, "subprotocols": []}
        self.said.put_nowait({"type": "websocket.connect"})
        self.said.put_nowait({"type": "websocket.receive", "text": wire.encode(hello(machine.name))})
        self.waits = asyncio.Event()
        # ASGI's type covers every protocol.
        served: Any = application
        self.connection = asyncio.ensure_future(served(scope, self.said.get, self._read))

    async def _read(self, message: dict[str, Any]) -> None:
        if message["type"] != "websocket.accept":
            self.waits.set()
            await asyncio.Event().wait()


async def test_an_agent_that_reads_nothing_holds_no_turn_and_is_hung_up(
    machine: Machine, agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "READS_WITHIN_SECONDS", 0.5)
    deaf = Deaf(machine)
    await asyncio.wait_for(deaf.waits.wait(), 10)
    async with AsyncExitStack() as turns, asyncio.timeout(10):
        for _ in range(reconnect_throttle.AT_ONCE):
            await turns.enter_async_context(reconnect_throttle.of_this_loop().slot())
    await asyncio.wait_for(deaf.connection, 10)
    assert hint_group(machine.node.pk) not in hints.bus()._joined
