"""The hub: hints from one process to others."""

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

from gpucloud import hub

SAID = {"type": "claim.changed", "uid": "a"}


@pytest.fixture(autouse=True)
async def hub_is_closed() -> AsyncIterator[None]:
    """The hub's connections are the event loop's, and each test has its own."""
    yield
    await hub.here().close()


async def joined(group: str) -> "asyncio.Queue[hub.Message]":
    said: asyncio.Queue[hub.Message] = asyncio.Queue()
    await hub.here().join(group, said.put_nowait)
    return said


async def next_of(said: "asyncio.Queue[hub.Message]") -> hub.Message:
    return await asyncio.wait_for(said.get(), 10)


async def test_who_has_joined_hears_what_is_said_afterwards_in_its_order() -> None:
    said = [await joined("one"), await joined("one")]
    other = await joined("other")
    await hub.here().say([("one", {"number": number}) for number in range(3)])
    await asyncio.to_thread(hub.say, [("one", {"number": 3}), ("other", SAID)])
    for each in said:
        assert [(await next_of(each))["number"] for _ in range(4)] == [0, 1, 2, 3]
    assert await next_of(other) == SAID


async def test_who_has_left_hears_nothing_and_others_still_do() -> None:
    here, gone, stays = hub.here(), asyncio.Queue[hub.Message](), await joined("one")
    leaver = gone.put_nowait
    await here.join("one", leaver)
    await here.leave("one", leaver)
    await here.say([("one", SAID)])
    assert await next_of(stays) == SAID
    assert gone.empty()


async def test_what_is_told_here_does_not_go_through_redis() -> None:
    said = await joined("one")
    hub.here().tell("one", SAID)
    assert said.get_nowait() == SAID


async def test_what_is_said_here_is_heard_here_at_once_and_once_and_elsewhere_too() -> None:
    said, other = await joined("one"), hub.Hub()
    there: asyncio.Queue[hub.Message] = asyncio.Queue()
    await other.join("one", there.put_nowait)
    await hub.here().say([("one", {"number": 1})])
    assert said.get_nowait() == {"number": 1}
    await other.say([("one", {"number": 2})])
    assert await next_of(said) == {"number": 2}
    # Its own comes to it at once, the first one's by way of Redis: in either order.
    assert sorted([(await next_of(there))["number"], (await next_of(there))["number"]]) == [1, 2]
    assert (said.empty(), there.empty()) == (True, True)
    await other.close()


async def test_what_a_listener_here_adds_to_a_message_stays_here() -> None:
    other, there = hub.Hub(), asyncio.Queue[hub.Message]()
    await hub.here().join("one", lambda message: message.update(at=1))
    await other.join("one", there.put_nowait)
    await hub.here().say([("one", {"number": 1})])
    assert await next_of(there) == {"number": 1}
    await other.close()


async def test_what_is_said_here_is_heard_here_while_redis_is_away(settings: Any) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1"
    said = await joined("one")
    with pytest.raises(RedisError):
        await hub.here().say([("one", SAID)])
    assert said.get_nowait() == SAID


async def test_a_subscription_that_breaks_is_made_anew_for_all_groups() -> None:
    said, here = await joined("one"), hub.here()
    for client in await here.redis.client_list(_type="pubsub"):
        if client["name"] == f"hub-{here.name}":
            await here.redis.client_kill_filter(_id=client["id"])
    async with asyncio.timeout(10):
        while said.empty():
            await asyncio.to_thread(hub.say, [("one", SAID)])
            await asyncio.sleep(0.1)
    assert await next_of(said) == SAID
    late = await joined("late")
    await asyncio.to_thread(hub.say, [("late", SAID)])
    assert await next_of(late) == SAID


async def test_what_nobody_understands_is_passed_over_and_the_next_is_heard() -> None:
    said, here = await joined("one"), hub.here()

    def shy(_: hub.Message) -> None:
        raise KeyError("something that this release does not know")

    await here.join("shy", shy)
    await here.redis.publish(hub._channel("one"), b"\xc1 no msgpack")
    await here.say([("shy", SAID), ("one", SAID)])
    await asyncio.to_thread(hub.say, [("shy", SAID), ("one", SAID)])
    assert [await next_of(said) for _ in range(2)] == [SAID] * 2


class Between:
    """A way to Redis that can be cut without a word: what was open stays open, and nothing more comes through."""

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
            await asyncio.gather(self._carry(reader, down), self._carry(up, writer))
        finally:
            down.close()
            writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        was_cut = self.is_cut
        while data := await reader.read(1 << 16):
            if self.is_cut == was_cut:
                writer.write(data)
                await writer.drain()
        writer.close()


async def test_a_subscription_that_was_cut_without_a_word_is_found_out_and_made_anew(
    tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "QUIET_SECONDS", 0.2)
    between, path = Between(), tmp_path / "r"
    direct = redis.asyncio.Redis.from_url(ours.REDIS_URL)
    between.url, settings.REDIS_URL = ours.REDIS_URL, f"unix://{path}"
    server = await asyncio.start_unix_server(between.serve, path)
    said, here = await joined("one"), hub.here()
    await direct.publish(hub._channel("one"), hub._encode(("", SAID)))
    assert await next_of(said) == SAID
    await asyncio.sleep(1)
    # Quiet for long, and answered when asked: nothing was made anew.
    assert between.opened == 1
    between.is_cut = True
    async with asyncio.timeout(10):
        while said.empty():
            await direct.publish(hub._channel("one"), hub._encode(("", SAID)))
            await asyncio.sleep(0.1)
    await direct.aclose()
    await here.close()
    server.close()


async def test_nobody_waits_for_the_word_of_a_redis_that_is_known_to_be_away(settings: Any) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1"
    await joined("one")
    begun = time.monotonic()
    await joined("two")
    assert time.monotonic() - begun < hub.ANSWER_SECONDS / 2
