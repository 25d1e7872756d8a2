"""The cast, and agents as sequences of frames."""

from collections.abc import AsyncIterator, Callable

import pytest

from gpucloud import hints
from tests.cast import Cast, Machine, cast, give_plenty, real_cast
from tests.nodes.agents import Agent, enrol_with

__all__ = ["cast", "real_cast"]


@pytest.fixture
def machine(real_cast: Cast) -> Machine:
    """Enrol `gpu1`, in a platform without limits."""
    give_plenty(real_cast.acme)
    machine = Machine("gpu1", real_cast.pool)
    enrol_with(machine, "secret")
    return machine


@pytest.fixture
async def agents(machine: Machine) -> AsyncIterator[Callable[..., Agent]]:
    """Return a maker of agents of `gpu1`; disconnect them at the end."""
    made: list[Agent] = []

    def make(credential: str | None = None) -> Agent:
        made.append(Agent(machine, f"gpn_{machine.node.uid}.secret" if credential is None else credential))
        return made[-1]

    yield make
    for agent in made:
        await agent.hang_up()
    # Each test has an event loop of its own, and the connections of the hint bus belong to the loop.
    await hints.bus().close()
