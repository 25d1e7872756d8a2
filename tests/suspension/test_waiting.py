"""`?wait=` of the orders: the answer has the claim once it is suspended, resumed, or refused."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from apps.scheduling.models import Assignment, Claim
from apps.scheduling.services.cycles.rounds import run_round
from gpucloud import hints
from tests.cast import GIB, Cast, Machine, give_plenty, placed, seen
from tests.scheduling.asgi_client import call, in_database


@pytest.fixture(autouse=True)
async def bus_is_closed() -> AsyncIterator[None]:
    """Close the bus: its connections belong to the event loop, and each test has its own loop."""
    yield
    await hints.bus().close()


@pytest.fixture
def running(real_cast: Cast) -> tuple[Machine, Claim]:
    give_plenty(real_cast.acme)
    machine = Machine("gpu1", real_cast.pool, host_memory_mib=20 * GIB).stay_online()
    return machine, placed(real_cast, machine)[0]


async def order(cast: Cast, claim: Claim, what: str, part: Callable[[], object]) -> Any:
    """Give the order and wait for it, while the platform does its part again and again."""
    asked = asyncio.ensure_future(call(cast.max, "POST", f"claims/{claim.uid}/{what}/?wait=30"))
    while not asked.done():
        await asyncio.sleep(0.2)
        await in_database(part)
    return await asked


async def test_a_wait_ends_once_the_claim_is_suspended_and_once_it_runs_again(
    real_cast: Cast, running: tuple[Machine, Claim]
) -> None:
    machine, claim = running
    answer = await order(real_cast, claim, "suspend", machine.obey)
    assert (answer.status, answer.body["state"]) == (200, "suspended")

    def place_and_obey() -> None:
        run_round(real_cast.pool)
        machine.obey()

    answer = await order(real_cast, claim, "resume", place_and_obey)
    assert (answer.status, answer.body["state"]) == (200, "active")


async def test_a_wait_ends_once_the_node_refuses(real_cast: Cast, running: tuple[Machine, Claim]) -> None:
    machine, claim = running

    def refuse() -> None:
        assignment = Assignment.objects.get(claim=claim)
        if assignment.state == "suspending":
            machine.say(seen(assignment, suspend_refused="It uses managed memory."))
        else:
            machine.obey()

    answer = await order(real_cast, claim, "suspend", refuse)
    assert (answer.status, answer.body["state"]) == (202, "active")
    assert answer.body["reasons"][0]["code"] == "suspend-refused"
