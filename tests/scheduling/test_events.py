"""Hints of a server's requests: requests do not wait for them, and list watchers receive them in batches."""

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest

from apps.scheduling import events
from gpucloud import hints
from tests.cast import Cast, give_plenty
from tests.scheduling.asgi_client import call, in_database

CLAIM = {"tenant": "acme", "core_request": 10, "memory_mib": 100}


@pytest.fixture(autouse=True)
async def bus_is_closed() -> AsyncIterator[None]:
    """Close the bus: its connections belong to the event loop, and each test has its own loop."""
    yield
    await hints.bus().close()


class Watcher:
    """A member of a hint group."""

    async def join(self, group: str) -> "Watcher":
        self.said: asyncio.Queue[hints.Message] = asyncio.Queue()
        await hints.bus().join(group, self.said.put_nowait)
        return self

    async def told(self, seconds: float = 10) -> str | None:
        """Return the uid in the next message, or None if none comes."""
        try:
            message = await asyncio.wait_for(self.said.get(), seconds)
        except TimeoutError:
            return None
        return str(message["uid"])


async def test_who_watches_claims_is_told_of_one_that_was_asked_for_and_of_its_end(real_cast: Cast) -> None:
    await in_database(lambda: give_plenty(real_cast.acme))
    lists = [await Watcher().join(events.claims_group(key)) for key in (None, real_cast.acme.pk)]
    made = await call(real_cast.max, "POST", "claims/", CLAIM)
    assert [await watcher.told() for watcher in lists] == [made.body["uid"]] * 2
    one = await Watcher().join(events.claim_group(made.body["uid"]))
    await call(real_cast.max, "DELETE", f"claims/{made.body['uid']}/")
    assert [await watcher.told() for watcher in (one, *lists)] == [made.body["uid"]] * 3


async def test_of_many_claims_a_list_is_told_once_and_each_claim_by_itself() -> None:
    uids = [str(uuid.uuid4()) for _ in range(3)]
    watched = await Watcher().join(events.claims_group(7))
    each = [await Watcher().join(events.claim_group(uid)) for uid in uids]
    for uid in uids:
        groups = events.claim_group(uid), events.claims_group(7)
        events._leave({group: {"type": "claim.changed", "uid": uid} for group in groups})
    assert [await watcher.told() for watcher in each] == uids
    assert await watched.told() == uids[-1]
    assert await watched.told(seconds=3 * events.GATHER_SECONDS) is None
