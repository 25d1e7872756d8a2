"""The hint bus between processes."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis.asyncio
from django.conf import settings as ours
from redis.exceptions import RedisError

from gpucloud import hints

HINT = {"type": "claim.changed", "uid": "a"}


@pytest.fixture(autouse=True)
async def bus_is_closed() -> AsyncIterator[None]:
    """Close the bus: its connections belong to the event loop, and each test has its own loop."""
    yield
    await hints.bus().close()


async def join(group: str) -> "asyncio.Queue[hints.Message]":
    received: asyncio.Queue[hints.Message] = asyncio.Queue()
    await hints.bus().join(group, received.put_nowait)
    return received


async def next_of(received: "asyncio.Queue[hints.Message]") -> hints.Message:
    return await asyncio.wait_for(received.get(), 10)


async def test_members_receive_later_messages_in_order() -> None:
    received = [await join("one"), await join("one")]
    other = await join("other")
    await hints.bus().publish([("one", {"number": number}) for number in range(3)])
    await asyncio.to_thread(hints.publish, [("one", {"number": 3}), ("other", HINT)])
    for each in received:
        assert [(await next_of(each))["number"] for _ in range(4)] == [0, 1, 2, 3]
    assert await next_of(other) == HINT


async def test_a_member_that_left_receives_nothing_and_others_still_do() -> None:
    bus, gone, stays = hints.bus(), asyncio.Queue[hints.Message](), await join("one")
    leaver = gone.put_nowait
    await bus.join("one", leaver)
    await bus.leave("one", leaver)
    await bus.publish([("one", HINT)])
    assert await next_of(stays) == HINT
    assert gone.empty()


async def test_deliver_does_not_use_redis() -> None:
    received = await join("one")
    hints.bus().deliver("one", HINT)
    assert received.get_nowait() == HINT


async def test_a_message_is_delivered_locally_once_and_at_once_and_to_other_buses() -> None:
    received, other = await join("one"), hints.HintBus()
    there: asyncio.Queue[hints.Message] = asyncio.Queue()
    await other.join("one", there.put_nowait)
    await hints.bus().publish([("one", {"number": 1})])
    assert received.get_nowait() == {"number": 1}
    await other.publish([("one", {"number": 2})])
    assert await next_of(received) == {"number": 2}
    # Its own message arrives at once, the other over Redis: the order is open.
    assert sorted([(await next_of(there))["number"], (await next_of(there))["number"]]) == [1, 2]
    assert (received.empty(), there.empty()) == (True, True)
    await other.close()


async def test_changes_by_a_local_callback_are_not_sent() -> None:
    other, there = hints.HintBus(), asyncio.Queue[hints.Message]()
    await hints.bus().join("one", lambda message: message.update(at=1))
    await other.join("one", there.put_nowait)
    await hints.bus().publish([("one", {"number": 1})])
    assert await next_of(there) == {"number": 1}
    await other.close()


async def test_local_delivery_works_while_redis_is_down(settings: Any) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1"
    received = await join("one")
    with pytest.raises(RedisError):
        await hints.bus().publish([("one", HINT)])
    assert received.get_nowait() == HINT


async def test_a_broken_subscription_is_renewed_for_all_groups() -> None:
    received, bus = await join("one"), hints.bus()
    for client in await bus.redis.client_list(_type="pubsub"):
        if client["name"] == f"hints-{bus.name}":
            await bus.redis.client_kill_filter(_id=client["id"])
    async with asyncio.timeout(10):
        while received.empty():
            await asyncio.to_thread(hints.publish, [("one", HINT)])
            await asyncio.sleep(0.1)
    assert await next_of(received) == HINT
    late = await join("late")
    await asyncio.to_thread(hints.publish, [("late", HINT)])
    assert await next_of(late) == HINT


async def test_a_message_that_fails_is_skipped() -> None:
    received, bus = await join("one"), hints.bus()

    def raising(_: hints.Message) -> None:
        raise KeyError("unknown to this release")

    await bus.join("raising", raising)
    await bus.redis.publish(hints._channel("one"), b"\xc1 no msgpack")
    await bus.publish([("raising", HINT), ("one", HINT)])
    await asyncio.to_thread(hints.publish, [("raising", HINT), ("one", HINT)])
    assert [await next_of(received) for _ in range(2)] == [HINT] * 2


class SilentProxy:
    """A proxy to Redis that can go silent: connections stay open, and no more data passes."""

    def __init__(self) -> None:
        self.is_cut = False
        self.opened = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        url = urlsplit(self.url)
        there = asyncio.open_unix_connection(url.path) if url.scheme == "unix" else asyncio.open_connection(
            url.hostname, url.port
        )  # fmt: skip
        up, down = await there
        try:
            await asyncio.gather(self._copy(reader, down), self._copy(up, writer))
        finally:
            down.close()
            writer.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        was_cut = self.is_cut
        while data := await reader.read(1 << 16):
            if self.is_cut == was_cut:
                writer.write(data)
                await writer.drain()
        writer.close()


async def test_a_silently_cut_subscription_is_detected_and_renewed(
    tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "QUIET_SECONDS", 0.2)
    proxy, path = SilentProxy(), tmp_path / "r"
    direct = redis.asyncio.Redis.from_url(ours.REDIS_URL)
    proxy.url, settings.REDIS_URL = ours.REDIS_URL, f"unix://{path}"
    server = await asyncio.start_unix_server(proxy.serve, path)
    received, bus = await join("one"), hints.bus()
    await direct.publish(hints._channel("one"), hints._encode(("", HINT)))
    assert await next_of(received) == HINT
    await asyncio.sleep(1)
    # A quiet connection that answers pings is not renewed.
    assert proxy.opened == 1
    proxy.is_cut = True
    async with asyncio.timeout(10):
        while received.empty():
            await direct.publish(hints._channel("one"), hints._encode(("", HINT)))
            await asyncio.sleep(0.1)
    await direct.aclose()
    await bus.close()
    server.close()


async def test_joins_do_not_wait_for_a_redis_known_to_be_down(settings: Any) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1"
    await join("one")
    begun = time.monotonic()
    await join("two")
    assert time.monotonic() - begun < hints.ANSWER_SECONDS / 2
