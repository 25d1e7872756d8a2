"""The connection: kept, made again, and given up to a newer agent."""

import asyncio
import time
from contextlib import suppress

import pytest
from websockets.exceptions import ConnectionClosed

from agent import wire
from agent.wire_bounds import MAX_DESIRED_BYTES
from tests.agent.control import Connection, Control
from tests.agent.stage import Stage, eventually


async def test_the_agent_connects_again_after_the_server_was_away(
    stage: Stage, link: Connection, control: Control
) -> None:
    held = stage.assignment()
    await link.send(wire.Desired(frame=1, assignments=[held]))
    await link.state(held.uid, "in_force")
    await control.stop()
    await asyncio.sleep(0.5)
    slot = stage.slot(held)
    assert slot is not None
    assert slot.is_open
    await control.start()
    again = await control.connection()
    observed = await again.expect(wire.Observed)
    assert [one.uid for one in observed.assignments] == [held.uid]


async def test_pauses_between_tries_grow_and_are_never_in_step(stage: Stage, control: Control) -> None:
    control.close_codes = [wire.CLOSE_BUSY] * 5
    stage.start(GPUCLOUD_BACKOFF_CAP_SECONDS="1")
    await control.connection(60)
    gaps = [after - before for before, after in zip(control.attempts, control.attempts[1:], strict=False)]
    assert gaps[0] > 0.2
    assert min(gaps[1:]) >= 0.5
    assert len({round(gap, 2) for gap in gaps[1:]}) > 1


async def test_a_busy_server_says_when_to_come_again(stage: Stage, control: Control) -> None:
    control.close_codes = [wire.CLOSE_BUSY]
    control.close_reason = wire.Busy.reason_of("too many agents came at once", 2.4)
    stage.start(GPUCLOUD_BACKOFF_CAP_SECONDS="0.2")
    await control.connection()
    assert 2.0 <= control.attempts[1] - control.attempts[0] < 4.0


def test_a_reason_without_a_time_or_with_an_absurd_one_is_no_long_pause() -> None:
    assert wire.Busy.seconds_of("the database did not take this frame") == 0
    assert wire.Busy.seconds_of("come again in 9999 s") == wire.Busy.MOST_SECONDS
    assert wire.Busy.seconds_of("come again in 99999 s") == 0
    assert wire.Busy.seconds_of(wire.Busy.reason_of("busy", 0.2)) == 1


async def test_a_refused_credential_ends_the_agent_with_a_cure(stage: Stage, control: Control) -> None:
    control.close_codes = [wire.CLOSE_UNAUTHORISED]
    stage.start()
    assert await stage.ended() == 4
    assert "credential-refused" in stage.log_text()
    assert "agent.json" in stage.log_text()


async def test_a_refusal_of_a_proxy_ends_nothing_and_is_said(stage: Stage, control: Control) -> None:
    control.handshake_statuses = [401, 403]
    stage.start()
    await control.connection()
    assert "HTTP 401, by something between here and the server" in stage.log_text()
    assert "HTTP 403, by something between here and the server" in stage.log_text()
    assert "credential-refused" not in stage.log_text()


async def test_an_agent_that_was_taken_over_stays_away_for_long(stage: Stage, control: Control) -> None:
    control.close_codes = [wire.CLOSE_SUPERSEDED]
    stage.start(GPUCLOUD_BACKOFF_CAP_SECONDS="0.2")
    await control.connection()
    assert control.attempts[1] - control.attempts[0] >= 1.6  # eight caps
    assert "superseded" in stage.log_text()


async def test_usage_is_sent_again_until_it_is_acknowledged(stage: Stage, control: Control) -> None:
    control.acknowledges = False
    stage.start()
    link = await control.connection()
    first = await link.expect(wire.Usage)
    third = await link.expect(wire.Usage, lambda frame: frame.seq == first.seq + 2)
    await link.send(wire.Ack(seq=first.seq + 1))
    # Later messages are answered after it was handled.
    await link.send(wire.Desired(frame=7, assignments=[]))
    await link.expect(wire.Observed, lambda frame: frame.frame == 7)
    await link.socket.close(1001)
    again = await control.connection()
    resent = await again.expect(wire.Usage)
    assert resent == third
    await again.expect(wire.Usage, lambda frame: frame.seq > third.seq)


async def test_sequence_numbers_grow_across_a_killed_agent(stage: Stage, link: Connection, control: Control) -> None:
    last = await link.expect(wire.Usage)
    await stage.kill()
    stage.start()
    again = await control.connection()
    assert (await again.expect(wire.Usage)).seq > last.seq


async def test_usage_names_every_gpu_once_a_second(link: Connection, stage: Stage) -> None:
    first = await link.expect(wire.Usage)
    second = await link.expect(wire.Usage, lambda frame: frame.seq > first.seq)
    assert [gpu.uuid for gpu in first.gpus] == stage.gpus
    assert 0.8 < second.at - first.at < 1.3
    assert abs(second.at - time.time()) < 5


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        '{"v":1,"type":"desired","frame":9,"assignments":[{"uid":"x"}]}',
        '{"v":2,"type":"desired","frame":9,"assignments":[]}',
        '{"v":1,"type":"desired","frame":-1,"assignments":[]}',
        '{"v":1,"type":"novelty"}',
    ],
)
async def test_a_malformed_frame_closes_the_connection_and_changes_nothing(
    stage: Stage, link: Connection, control: Control, text: str
) -> None:
    held = stage.assignment()
    await link.send(wire.Desired(frame=1, assignments=[held]))
    await link.state(held.uid, "in_force")
    await link.socket.send(text)
    await link.closed.wait()
    assert link.socket.close_code == wire.CLOSE_MALFORMED
    again = await control.connection()
    await again.state(held.uid, "in_force")
    slot = stage.slot(held)
    assert slot is not None
    assert slot.is_open


async def test_a_wanted_state_of_many_claims_with_long_names_is_taken(stage: Stage, link: Connection) -> None:
    held = stage.assignment()
    text = wire.encode(wire.Desired(frame=1, assignments=[held]))
    # Unknown fields of a newer server are skipped: they stand for the names of fifteen hundred claims.
    await link.socket.send(text[:-1] + ',"besides":"' + "名" * (1 << 20) + '"}')
    await link.state(held.uid, "in_force")


async def test_a_frame_that_no_node_can_need_is_not_read(stage: Stage, link: Connection, control: Control) -> None:
    with suppress(ConnectionClosed):
        await link.socket.send(" " * (MAX_DESIRED_BYTES + 1))
    await link.closed.wait()
    await control.connection()


async def test_sigterm_ends_the_agent_at_once_and_leaves_the_pages(stage: Stage, link: Connection) -> None:
    held = stage.assignment()
    await link.send(wire.Desired(frame=1, assignments=[held]))
    await link.state(held.uid, "in_force")
    assert stage.agent is not None
    started = time.monotonic()
    stage.agent.terminate()
    assert await stage.ended() == 0
    assert time.monotonic() - started < 2
    slot = stage.slot(held)
    assert slot is not None
    assert slot.is_open
    await eventually(lambda: not (stage.run_dir / "agent.sock").exists())
