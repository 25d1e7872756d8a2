"""`?wait=` of a group: the answer comes once its members differ from what the caller knows."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gpucloud import hints
from tests.cast import Cast, Machine, give_plenty
from tests.groups.elastic import Training, train
from tests.scheduling.asgi_client import call, in_database


@pytest.fixture(autouse=True)
async def bus_is_closed() -> AsyncIterator[None]:
    """Close the bus: its connections belong to the event loop, and each test has its own loop."""
    yield
    await hints.bus().close()


@pytest.fixture
def training(real_cast: Cast) -> Training:
    give_plenty(real_cast.acme)
    return train(real_cast, Machine("gpu1", real_cast.pool).stay_online())


async def test_a_wait_ends_with_a_change_and_not_before(real_cast: Cast, training: Training) -> None:
    waits = asyncio.ensure_future(call(real_cast.max, "GET", "groups/train/?wait=60", If_None_Match='"0"'))
    await asyncio.sleep(1.5)
    assert not waits.done()
    await in_database(training.step)
    answer = await waits
    assert (answer.status, answer.body["generation"], answer.headers["ETag"]) == (200, 1, '"1"')
    assert [member["rank"] for member in answer.body["members"]] == [0, 1]


async def test_a_wait_without_a_change_ends_in_time_and_one_without_a_tag_at_once(
    real_cast: Cast, training: Training
) -> None:
    answer = await call(real_cast.max, "GET", "groups/train/?wait=1", If_None_Match='"0"')
    assert (answer.status, answer.headers["ETag"]) == (304, '"0"')
    answer = await call(real_cast.max, "GET", "groups/train/?wait=60")
    assert (answer.status, answer.body["members"]) == (200, [])
    assert (await call(real_cast.gus, "GET", "groups/train/?wait=60", If_None_Match='"0"')).status == 404
    assert (await call(real_cast.max, "GET", "groups/train/?wait=1e9")).status == 400
