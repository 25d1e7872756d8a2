"""Runs of jobs between an agent and the app that provides them, through the gateway."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from msgspec import structs

from agent import wire
from apps.nodes.models import Node
from apps.scheduling.providers import jobs
from tests.cast import Machine, hello
from tests.nodes.agents import Agent, in_database

Agents = Callable[..., Agent]
UID, CLAIM = "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"
RUN = wire.JobRun(uid=UID, claim_uid=CLAIM, command=["true"])
STATE = wire.JobState(uid=UID, state="running", started_at=5.0)


@dataclass
class Jobs:
    """The smallest app that provides jobs: one run on each node."""

    seen: list[tuple[str, Sequence[wire.JobState]]] = field(default_factory=list)
    log: bytes = b""

    def orders(self, node_ids: Sequence[int]) -> dict[int, list[wire.JobRun]]:
        return {node_id: [RUN] for node_id in node_ids}

    def observed(self, node: Node, states: Sequence[wire.JobState]) -> None:
        self.seen.append((node.name, states))

    def output(self, node: Node, frame: wire.Output) -> int | None:
        if frame.uid != UID:
            return None
        self.log += frame.data[len(self.log) - frame.offset :]
        return len(self.log)


@pytest.fixture
def provided() -> Iterator[Jobs]:
    """Provide jobs for one test, in the place of those of the platform."""
    before, mine = jobs.find(), Jobs()
    jobs._implementation = mine
    yield mine
    jobs._implementation = before


@pytest.fixture
def nobody() -> Iterator[None]:
    before = jobs.find()
    jobs._implementation = None
    yield
    jobs._implementation = before


async def test_an_agent_gets_the_runs_of_its_node_and_reports_them(agents: Agents, provided: Jobs) -> None:
    agent = agents()
    assert (await agent.greet()).jobs == [RUN]
    await agent.say(wire.Observed(frame=1, assignments=[], jobs=[STATE]))
    await agent.say(wire.Output(uid=UID, offset=0, data=b"one "))
    assert await agent.hear() == wire.Stored(uid=UID, bytes=4)
    assert provided.seen == [("gpu1", [STATE])]
    # Sent again after a lost answer, and then more.
    await agent.say(wire.Output(uid=UID, offset=0, data=b"one two"))
    assert await agent.hear() == wire.Stored(uid=UID, bytes=7)
    assert provided.log == b"one two"


async def test_output_of_an_unknown_run_is_dropped(agents: Agents, provided: Jobs) -> None:
    agent = agents()
    await agent.greet()
    await agent.say(wire.Output(uid=CLAIM, offset=0, data=b"x"))
    assert await agent.quiet()
    assert provided.log == b""


async def test_without_an_app_of_jobs_there_are_none(agents: Agents, nobody: None) -> None:
    agent = agents()
    assert "jobs" not in wire.encode(await agent.greet())
    await agent.say(wire.Observed(frame=1, assignments=[], jobs=[STATE]))
    await agent.say(wire.Output(uid=UID, offset=0, data=b"x"))
    assert await agent.quiet()


@pytest.mark.parametrize("said", [True, False])
async def test_a_node_shows_whether_its_agent_starts_jobs(agents: Agents, machine: Machine, said: bool) -> None:
    first = hello("gpu1")
    await agents().greet(structs.replace(first, jobs=True) if said else first)
    assert await in_database(lambda: Node.objects.get(name="gpu1").jobs) is said
