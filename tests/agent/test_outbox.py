"""The agent's outbox for its server, and its rate of resending."""

import asyncio

import pytest

from agent import wire
from agent.server.outbox import MAX_IN_FLIGHT, MAX_USAGE_FRAMES, Outbox


def usage(seq: int) -> wire.Usage:
    return wire.Usage(seq=seq, at=1000.0 + seq, gpus=[], assignments=[])


def filled(frames: int) -> Outbox:
    outbox = Outbox(lambda: wire.Observed(frame=1, assignments=[]), lambda: wire.Conditions(conditions=[]))
    for seq in range(1, frames + 1):
        outbox.keep(usage(seq))
    return outbox


async def sent_frames(outbox: Outbox) -> list[int]:
    """Return the numbers of the usage frames that are sent until nothing more is."""
    found: list[int] = []
    while True:
        try:
            async with asyncio.timeout(0.02):
                frame = wire.decode_from_agent(await outbox.take())
        except TimeoutError:
            return found
        if isinstance(frame, wire.Usage):
            found.append(frame.seq)


async def test_what_was_kept_goes_out_in_step_with_what_is_acknowledged() -> None:
    outbox = filled(30)
    assert await sent_frames(outbox) == list(range(1, MAX_IN_FLIGHT + 1))
    outbox.acknowledge(3)
    assert await sent_frames(outbox) == [MAX_IN_FLIGHT + number for number in (1, 2, 3)]
    outbox.acknowledge(MAX_IN_FLIGHT + 3)
    assert len(await sent_frames(outbox)) == MAX_IN_FLIGHT


async def test_a_new_connection_begins_again_with_the_oldest_that_is_kept() -> None:
    outbox = filled(5)
    await sent_frames(outbox)
    outbox.acknowledge(2)
    outbox.restart(health=True, borrowed=True)
    assert await sent_frames(outbox) == [3, 4, 5]


async def test_a_long_absence_keeps_the_newest() -> None:
    outbox = filled(MAX_USAGE_FRAMES + 7)
    assert outbox.unacknowledged == MAX_USAGE_FRAMES
    assert (await sent_frames(outbox))[0] == 8


@pytest.mark.parametrize("seq", [0, 5])
async def test_an_acknowledgement_of_what_was_never_sent_changes_nothing_else(seq: int) -> None:
    outbox = filled(5)
    outbox.acknowledge(seq)
    assert outbox.unacknowledged == 5 - seq
    assert await sent_frames(outbox) == list(range(seq + 1, 6))


async def test_a_frame_that_has_no_text_is_left_out_and_the_next_ones_go_out() -> None:
    odd = wire.Drift(kind="library-other", claim_uid="a", detail="\udcff", since=1.0, mendable=False)
    outbox = Outbox(
        lambda: wire.Observed(frame=1, assignments=[], drifts=[odd]), lambda: wire.Conditions(conditions=[])
    )
    outbox.put(wire.Event(at=1.0, code="drift-found", detail="\udcff"))
    outbox.restart(health=True, borrowed=True)
    outbox.keep(usage(1))
    frames = [wire.decode_from_agent(await outbox.take()) for _ in range(2)]
    assert frames == [wire.Conditions(conditions=[]), usage(1)]


def of_borrower(seq: int) -> wire.Usage:
    moved = wire.BorrowedMemory(
        borrowed_bytes=1, out_bytes=2, moved_bytes=3, moved_bytes_per_second=3.0, stood_ms=4.0, stood_percent=0.4
    )
    item = wire.AssignmentUsage(
        uid="0" * 8 + "-0000" * 3 + "-" + "0" * 12, core_percent=1, core_limit_percent=2, throttled_percent=3,
        memory_bytes=4, memory_limit_bytes=5, processes=6, borrowed=moved,
    )  # fmt: skip
    return wire.Usage(seq=seq, at=1000.0, gpus=[], assignments=[item])


async def test_an_older_server_gets_the_usage_without_borrowed_memory() -> None:
    outbox = filled(0)
    outbox.keep(of_borrower(1))
    outbox.restart(health=False, borrowed=False)
    text = [await outbox.take() for _ in range(3)][-1]
    assert "borrowed" not in text
    usage = wire.decode_from_agent(text)
    assert isinstance(usage, wire.Usage)
    assert (usage.seq, usage.assignments[0].memory_bytes) == (1, 4)
    # The same frame, kept, to a newer one.
    outbox.restart(health=False, borrowed=True)
    frames = [wire.decode_from_agent(await outbox.take()) for _ in range(3)]
    assert frames[-1] == of_borrower(1)
