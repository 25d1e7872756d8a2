"""Frames of many nodes are stored in batches; a faulty frame of one node does not affect others."""

import asyncio
from collections.abc import Callable

import pytest

from agent import wire
from apps.nodes.gateway import intake
from apps.nodes.gateway.intake import Intake
from apps.nodes.providers import node_claims
from apps.nodes.services.telemetry.storing import Measured, Source

Told = Callable[[int | None], None]


class NoWatchers:
    """A publisher without watchers."""

    async def show(self, batch: object) -> None:
        """Publish nothing."""


def frame(seq: int) -> wire.Usage:
    return wire.Usage(seq=seq, at=1, gpus=[], assignments=[])


async def test_one_node_takes_no_others_room_and_has_its_own_again_when_it_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intake, "_store_batch", lambda _: None)
    monkeypatch.setattr(intake, "GATHER_SECONDS", 0)
    monkeypatch.setattr(node_claims, "get", NoWatchers)
    frames, done = Intake(), asyncio.Event()

    def told(seq: int | None) -> None:
        assert seq is not None
        done.set()

    for seq in range(1, intake.MOST_OF_ONE + 1):
        # Another connection of the node is the same node.
        frames.put(Source(1, "greedy", "", {}, {}), frame(seq), told)
    with pytest.raises(intake.NoRoom, match="64 frames of this node"):
        frames.put(Source(1, "greedy", "", {}, {}), frame(seq + 1), told)
    frames.put(Source(2, "modest", "", {}, {}), frame(1), told)
    async with asyncio.timeout(10):
        await done.wait()
    frames.put(Source(1, "greedy", "", {}, {}), frame(seq + 1), told)
    done.clear()
    async with asyncio.timeout(10):
        await done.wait()


async def test_a_frame_that_cannot_be_stored_costs_its_own_node_only(monkeypatch: pytest.MonkeyPatch) -> None:
    stored: list[str] = []

    def store(batch: list[Measured]) -> None:
        # As a statement does: all of the batch, or nothing.
        if any(source.node_name == "bad" for source, _ in batch):
            raise OverflowError("what no column holds")
        stored.extend(source.node_name for source, _ in batch)

    monkeypatch.setattr(intake, "_store_batch", store)
    monkeypatch.setattr(node_claims, "get", NoWatchers)
    frames, heard = Intake(), {name: list[int | None]() for name in ("a", "b", "bad", "c")}
    for name, said in heard.items():
        told: Told = said.append
        for seq in (1, 2):
            frames.put(Source(1, name, "", {}, {}), frame(seq), told)
    for _ in range(200):
        if all(heard.values()):
            break
        await asyncio.sleep(0.05)
    assert sorted(set(stored)) == ["a", "b", "c"]
    assert {name: said[-1] for name, said in heard.items() if name != "bad"} == {"a": 2, "b": 2, "c": 2}
    # Closed at once because one is missing: before anything later is acknowledged.
    assert heard["bad"][0] is None
