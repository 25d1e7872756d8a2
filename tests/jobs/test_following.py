"""`?wait=` of a job's output: the answer comes once there is something after the offset, or the run has ended."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from apps.jobs.models import Job
from gpucloud import hints
from tests.cast import Cast, Machine
from tests.jobs import acting
from tests.scheduling.asgi_client import call, in_database


@pytest.fixture(autouse=True)
async def bus_is_closed() -> AsyncIterator[None]:
    """Close the bus: its connections belong to the event loop, and each test has its own loop."""
    yield
    await hints.bus().close()


@pytest.fixture
def job(real_cast: Cast, machine_of: Machine) -> Job:
    return acting.started(real_cast, machine_of)


async def follow(cast: Cast, job: Job, offset: int = 0, wait: int = 60) -> Any:
    """Wait for output as `gpucloud job logs --follow` does."""
    return await call(cast.max, "GET", f"jobs/{job.uid}/output/?offset={offset}&wait={wait}")


async def test_a_follower_is_answered_when_there_is_output_and_not_before(
    real_cast: Cast, machine_of: Machine, job: Job
) -> None:
    waits = asyncio.ensure_future(follow(real_cast, job))
    await asyncio.sleep(1)
    assert not waits.done()
    # A character of four bytes, and half of one.
    await in_database(lambda: acting.send(machine_of, job, "😀".encode() + b"\xf0\x9f"))
    part = (await asyncio.wait_for(waits, 20)).body
    assert (part["text"], part["next_offset"], part["complete"]) == ("😀", 4, False)
    # Half a character is nothing yet.
    part = (await follow(real_cast, job, offset=4, wait=1)).body
    assert (part["text"], part["next_offset"]) == ("", 4)


async def test_a_follower_is_answered_at_the_end(real_cast: Cast, machine_of: Machine, job: Job) -> None:
    await in_database(lambda: acting.send(machine_of, job, b"all"))
    waits = asyncio.ensure_future(follow(real_cast, job, offset=3))
    await asyncio.sleep(0.5)
    await in_database(lambda: acting.end(machine_of, job, 0, output_bytes=3))
    part = (await asyncio.wait_for(waits, 20)).body
    assert (part["text"], part["complete"]) == ("", True)
    # Nothing is waited for any more.
    assert (await asyncio.wait_for(follow(real_cast, job, offset=3), 20)).body["complete"]


async def test_a_wait_that_is_wrong_or_for_another_tenant(real_cast: Cast, job: Job) -> None:
    for wait in ("1e9", "301", "-1", "", "abc"):
        answer = await call(real_cast.max, "GET", f"jobs/{job.uid}/output/?wait={wait}")
        assert (answer.status, list(answer.body["errors"])) == (400, ["wait"]), wait
    assert (await call(real_cast.gus, "GET", f"jobs/{job.uid}/output/?wait=60")).status == 404
    assert (await call(real_cast.max, "GET", f"jobs/{job.uid}/output/?offset=x&wait=60")).status == 400
