"""Claims with hard isolation, the whole way: REST, scheduler, agent, driver, program; also with a killed agent."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.conftest import run_dir as run_dir  # noqa: PLC0414 - a fixture
from tests.agent.stage import GPULOAD, Stage, eventually
from tests.agent.test_instances import H200, KILLED_AT, instances_of
from tests.platform import Json, Platform, until

pytestmark = [pytest.mark.serial, pytest.mark.timeout(240)]

# Moments of an agent's life at which it is killed: while it makes the instance, and while it removes it.
MAKES = ("nvmlGpuInstanceCreateComputeInstance", "before")
REMOVES = ("nvmlGpuInstanceDestroy", "before")


class Scene:
    """A pool with one node, whose first GPU is in MIG mode, and a tenant."""

    def __init__(self, platform: Platform, directory: Path, run_dir: Path) -> None:
        self.platform = platform
        self.name = f"mig-{uuid.uuid4().hex[:8]}"
        self.tenant = platform.new_tenant(self.name, core=200, memory_mib=300_000)
        platform.granted("POST", "pools/", {"name": self.name})
        made = platform.granted("POST", "nodes/", {"name": self.name, "pool": self.name})
        self._token = made["enrolment_token"]
        self.stage = Stage(directory, run_dir, None, gpus=2, name=self.name, shape=H200)

    def start_agent(self, **more: Any) -> None:
        self.stage.start(server=self.platform.url, GPUCLOUD_ENROL_TOKEN=self._token, **more)

    async def online(self) -> None:
        """Wait until the node takes claims."""
        await eventually(lambda: self.platform.granted("GET", f"nodes/{self.name}/")["state"] == "ready", seconds=30)

    def ask(self, *, wait: int = 30, **asked: Any) -> Json:
        body = {"tenant": self.tenant, "pool": self.name, "isolation": "hard", **asked}
        claim: Json = self.platform.granted("POST", f"claims/?wait={wait}", body)
        return claim

    def read(self, claim: Json) -> Json:
        found: Json = self.platform.granted("GET", f"claims/{claim['uid']}/")
        return found

    def release(self, claim: Json, *, wait: int = 30) -> Json:
        released: Json = self.platform.granted("DELETE", f"claims/{claim['uid']}/?wait={wait}")
        return released

    async def run(self, claim: Json, *command: str) -> tuple[int, str, str]:
        secret = self.platform.granted("GET", f"claims/{claim['uid']}/env/")["secret"]
        return await self.stage.executed(claim["uid"], *command, secret=secret)


@pytest.fixture
async def scene(platform: Platform, tmp_path: Path, run_dir: Path) -> AsyncIterator[Scene]:
    it = Scene(platform, tmp_path, run_dir)
    yield it
    for claim in platform.granted("GET", f"claims/?tenant={it.tenant}")["results"]:
        platform.granted("DELETE", f"claims/{claim['uid']}/")
    it.stage.close()


async def test_claims_run_in_instances_of_their_own_and_leave_none(scene: Scene) -> None:
    scene.start_agent()
    await scene.online()
    small, large = scene.ask(core_request=10, memory_mib=8192), scene.ask(profile="4g.71gb")
    assert [claim["state"] for claim in (small, large)] == ["active", "active"]
    assert (small["profile"], small["memory_mib"], large["core_request"]) == ("1g.18gb", 16384, 57)
    assert sorted(instances_of(scene.stage)) == ["0:4", "6:1"]
    # Each program has the memory of its claim's instance: 20 GiB are too much for one of them.
    for claim, fits in ((small, False), (large, True)):
        _, out, _ = await scene.run(claim, str(GPULOAD), "--memory", "20GiB", "--seconds", "0.5")
        assert ("OUT_OF_MEMORY" not in out) == fits, out
    full = scene.ask(wait=2, profile="4g.71gb")
    assert full["state"] == "queued"
    assert {reason["code"] for reason in full["reasons"]} == {"gpu-not-mig", "mig-place"}
    assert scene.release(large)["state"] == "released"
    until(lambda: scene.read(full)["state"] == "active", seconds=30, what="the waiting claim to get the place")
    for claim in (small, full):
        assert scene.release(claim)["state"] == "released"
    assert instances_of(scene.stage) == {}
    assert set(scene.platform.used(scene.tenant).values()) == {0}


async def test_an_agent_killed_in_the_middle_leaves_no_instance_and_no_charge(scene: Scene) -> None:
    scene.start_agent(code=KILLED_AT, arguments=MAKES)
    await scene.online()
    claim = scene.ask(wait=1, profile="2g.35gb")
    assert await scene.stage.ended() == -9
    assert list(instances_of(scene.stage)) == ["4:2"], "half an instance is there"
    scene.start_agent(code=KILLED_AT, arguments=REMOVES)
    until(lambda: scene.read(claim)["state"] == "active", seconds=30, what="the next agent to complete it")
    assert scene.release(claim, wait=1)["state"] == "releasing"
    assert await scene.stage.ended() == -9
    assert list(instances_of(scene.stage)) == ["4:2"]
    await asyncio.sleep(1)
    assert scene.read(claim)["state"] == "releasing", "while the instance is there, its slices are nobody else's"
    scene.start_agent()
    until(lambda: scene.read(claim)["state"] == "released", seconds=30, what="the last agent to remove it")
    assert instances_of(scene.stage) == {}
    assert set(scene.platform.used(scene.tenant).values()) == {0}


async def test_a_running_program_survives_its_agent(scene: Scene) -> None:
    scene.start_agent()
    await scene.online()
    claim = scene.ask(profile="3g.71gb")
    secret = scene.platform.granted("GET", f"claims/{claim['uid']}/env/")["secret"]
    program = scene.stage.exec(claim["uid"], str(GPULOAD), "--memory", "30GiB", secret=secret)
    await asyncio.sleep(1)
    await scene.stage.kill()
    await asyncio.sleep(1)
    assert program.poll() is None
    scene.start_agent()
    await scene.online()
    assert scene.release(claim)["state"] == "released"
    await asyncio.to_thread(program.wait, 10)
    assert instances_of(scene.stage) == {}


async def test_claims_of_one_tenant_share_an_instance_through_kills_and_it_ends_with_the_last(scene: Scene) -> None:
    scene.start_agent()
    await scene.online()
    opener = scene.ask(profile="3g.71gb", own_core=12, own_memory_mib=16384)
    inside = scene.ask(instance_of=opener["uid"], core_request=20, core_limit=42, memory_mib=20480)
    waits = scene.ask(wait=2, instance_of=opener["uid"], core_request=20, memory_mib=20480)
    assert [claim["state"] for claim in (opener, inside, waits)] == ["active", "active", "queued"]
    assert [reason["code"] for reason in waits["reasons"]] == ["instance-full"]
    assert list(instances_of(scene.stage)) == ["4:4"]
    secret = scene.platform.granted("GET", f"claims/{inside['uid']}/env/")["secret"]
    program = scene.stage.exec(inside["uid"], str(GPULOAD), "--memory", "15GiB", secret=secret)
    await asyncio.sleep(1)
    await scene.stage.kill()
    scene.start_agent(code=KILLED_AT, arguments=REMOVES)
    await scene.online()
    assert program.poll() is None
    grown = scene.platform.granted("PATCH", f"claims/{inside['uid']}/?wait=30", {"core_request": 30})
    assert grown["observed_generation"] == grown["generation"]
    # The agent is killed while it removes the instance, which is there until the next has done so.
    assert scene.release(opener, wait=1)["state"] == "releasing"
    assert await scene.stage.ended() == -9
    assert list(instances_of(scene.stage)) == ["4:4"]
    scene.start_agent()
    for claim in (opener, inside, waits):
        until(lambda: scene.read(claim)["state"] == "released", seconds=30, what="all to end")  # noqa: B023
    await asyncio.to_thread(program.wait, 10)
    assert instances_of(scene.stage) == {}
    assert set(scene.platform.used(scene.tenant).values()) == {0}
