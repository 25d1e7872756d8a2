"""Tunnels that an agent dials, shared between the tenants of its node: a real server and a real unix socket."""

import asyncio
import socket
import uuid
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio.server import ServerConnection, serve

from agent import wire
from agent.jobs import tunnels
from agent.jobs.slots import FairSlots
from agent.jobs.tunnels import CLOSE_REFUSED, Tunnels


@given(st.integers(2, 40), st.lists(st.integers(1, 5), max_size=200))
def test_whoever_has_none_finds_a_slot_among_fewer_tenants_than_slots(most: int, owners: list[int]) -> None:
    slots, taken = FairSlots(most), Counter[int]()
    for owner in owners:
        taken[owner] += slots.take(owner)
    assert taken.total() <= most
    # One tenant never has more than half, and a new one gets some as long as slots are not finer than tenants.
    assert all(count <= (most + 1) // 2 for count in taken.values())
    if len(taken) < most.bit_length():
        assert slots.take(6)
    for owner, count in taken.items():
        for _ in range(count):
            slots.give_back(owner)
    assert slots.take(7)


class PlainSlots(FairSlots):
    """Slots for whoever comes first, as a control."""

    def take(self, owner: int) -> bool:
        """Take any that is free."""
        is_free = self._taken.total() < self._most
        self._taken[owner] += is_free
        return is_free


class Runs:
    """Runs of two tenants: the first letter of a run's uid is its tenant. Their notebooks are at one socket."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def owner_of(self, uid: str) -> int:
        return int(uid[0])

    def connect_notebook(self, uid: str) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self._path))
        connection.setblocking(False)
        return connection


def frame(owner: int) -> wire.Tunnel:
    """Return the order to dial a stream to a run of this tenant, each time another run."""
    return wire.Tunnel(uid=str(uuid.uuid4()), run_uid=f"{owner}{str(uuid.uuid4())[1:]}", ticket="t" * 43, stream=True)


async def answer_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve as a notebook that only reads."""
    await reader.read()
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("slots", [FairSlots, PlainSlots])
async def test_a_tenant_cannot_take_all_streams_of_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slots: type[FairSlots]
) -> None:
    monkeypatch.setattr(tunnels, "FairSlots", slots)
    monkeypatch.setattr(tunnels, "MOST_OF_NODE", 16)
    is_open, refusals = set[ServerConnection](), []

    async def hold(connection: ServerConnection) -> None:
        is_open.add(connection)
        await connection.wait_closed()
        is_open.discard(connection)
        if connection.close_code == CLOSE_REFUSED:
            refusals.append(connection.close_reason)

    async with await asyncio.start_unix_server(answer_nothing, tmp_path / "s"), serve(hold, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        dialler = Tunnels(cast("Any", Runs(tmp_path / "s")), f"http://127.0.0.1:{port}")
        for _ in range(12):
            for _ in range(4):
                dialler.dial(frame(1))
            await asyncio.sleep(0.1)
        first = len(is_open)
        assert first == (8 if slots is FairSlots else 16)
        assert len(refusals) > 8
        assert "part of this node's connections" in str(refusals[0])
        dialler.dial(frame(2))
        await asyncio.sleep(0.5)
        assert len(is_open) - first == (1 if slots is FairSlots else 0)
        for connection in list(is_open):
            await connection.close()
        await asyncio.sleep(0.5)
        dialler.dial(frame(1))
        await asyncio.sleep(0.5)
        assert len(is_open) == 1
        for connection in list(is_open):
            await connection.close()
        await asyncio.gather(*dialler._open, return_exceptions=True)
