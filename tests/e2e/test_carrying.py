"""A running program goes from one node to another by the server's order, whatever part is killed meanwhile.

Two agents with pid and mount namespaces of their own, on the simulated driver, and CRIU. The program adds to a hash
chain: a step that is lost or taken twice breaks it.
"""

import shutil
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.carrying import CHAIN, Site, find_lack
from tests.agent.test_carry import check_chain, goes_on, make_places, read_steps
from tests.cli.commands import Shell
from tests.e2e.test_chaos import HEALED_SECONDS, LONG, insist
from tests.platform import Json, Platform, until

pytestmark = [
    pytest.mark.serial,
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_lack() is not None, reason=f"running programs: {find_lack()}"),
]

# Its images take a second or two on their way.
MIB = 512
# When the order was answered; when the old node is asked; when the new one is.
STEPS = ("ordered", "sending", "restoring")
PARTS = ("old agent", "new agent", "server", "worker", "postgres")


class Scene:
    """A claim with a program on one of two nodes."""

    def __init__(self, platform: Platform, directory: Path) -> None:
        self.platform, self.directory = platform, directory
        self.id = uuid.uuid4().hex[:8]
        self.tenant = platform.new_tenant(f"carry-{self.id}")
        platform.granted("POST", "quotas/", {"tenant": self.tenant, "resource": "host_memory_mib", "hard": None})
        self.sites: dict[str, Site] = {}
        self.root, self.paths = make_places()
        self.out = directory / "out"

    async def open(self) -> None:
        """Start both nodes, and the program under a claim."""
        self.platform.granted("POST", "pools/", {"name": f"carry-{self.id}"})
        for name in (f"left-{self.id}", f"right-{self.id}"):
            run_dir = self.root / f"{name}-run"
            run_dir.mkdir(mode=0o755)
            made = self.platform.granted("POST", "nodes/", {"name": name, "pool": f"carry-{self.id}"})
            site = Site(self.directory / name, run_dir, None, self.paths, name=name)
            self.sites[name] = site
            await site.open()
            site.start_agent(self.platform.url, GPUCLOUD_ENROL_TOKEN=made["enrolment_token"])
        for name in self.sites:
            until(lambda name=name: self.node(name)["can_carry"], what=f"{name} to say that it can carry")
        asked = {"tenant": self.tenant, "pool": f"carry-{self.id}", "core_request": 30, "memory_mib": 4 * MIB}
        claim = self.platform.granted("POST", "claims/?wait=60", {**asked, "movable": True})
        self.uid = claim["uid"]
        self.old, self.new = sorted(self.sites, key=lambda name: name != claim["assignments"][0]["node"])
        secret = self.platform.granted("GET", f"claims/{self.uid}/env/")["secret"]
        await self.sites[self.old].launch(self.uid, CHAIN, str(self.out), str(MIB), secret=secret)
        until(lambda: len(read_steps(self.out)) > 5, what="the program to work")

    def node(self, name: str) -> Json:
        found: Json = insist(self.platform, "GET", f"nodes/{name}/").body
        return found

    def claim(self) -> Json:
        found: Json = insist(self.platform, "GET", f"claims/{self.uid}/").body
        return found

    async def kill(self, part: str) -> None:
        """Kill a part by SIGKILL; it is started anew."""
        if part not in ("old agent", "new agent"):
            self.platform.kill(part)
            return
        site = self.sites[self.old if part == "old agent" else self.new]
        await site.kill()
        site.start_agent(self.platform.url)

    def meet(self, step: str) -> None:
        """Wait for this step; fail if the move is over before."""
        end = time.monotonic() + HEALED_SECONDS
        while True:
            claim = self.claim()
            states = {item["node"]: item["state"] for item in claim["assignments"]}
            assert claim["moves_to"] == self.new, (step, claim["state"], claim["reasons"])
            if step == "ordered" or states[self.old] == "suspending" or claim["state"] == "resuming":
                break
            assert time.monotonic() < end, (step, states)
        while step == "restoring" and claim["state"] != "resuming":
            claim = self.claim()
            assert claim["moves_to"] == self.new, (step, claim["state"], claim["reasons"])

    def settle(self) -> str:
        """Return the node on which the claim is, once nothing of the move is left."""

        def is_over() -> Json | None:
            claim = self.claim()
            alone = len(claim["assignments"]) == 1 and claim["observed_generation"] == claim["generation"]
            return claim if claim["state"] == "active" and alone else None

        claim: Json = until(is_over, seconds=HEALED_SECONDS, what="the move to be over")
        return str(claim["assignments"][0]["node"])

    def check_books(self, where: str) -> None:
        """Check that the claim is charged where it is, once, and no memory of a node any more."""
        used = self.platform.used(self.tenant)
        assert (used["core_percent"], used["memory_mib"], used["host_memory_mib"]) == (30, 4 * MIB, 0)
        for name in self.sites:
            assert self.node(name)["host_memory_used_mib"] == 0
            gpus = self.platform.granted("GET", f"gpus/?node={name}")["results"]
            assert sum(100 - gpu["core_free"] for gpu in gpus) == (30 if name == where else 0)

    def close(self) -> None:
        for site in self.sites.values():
            site.close()
        shutil.rmtree(self.root)


@pytest.fixture
async def scene(platform: Platform, tmp_path: Path) -> AsyncIterator[Scene]:
    made = Scene(platform, tmp_path)
    try:
        await made.open()
        yield made
    finally:
        made.close()
        for name in made.sites:
            # Its claims are not those of the tests that follow.
            until(lambda name=name: made.node(name)["state"] in ("lost", "awaiting-agent"), what=f"{name} to be silent")
            insist(platform, "POST", f"nodes/{name}/forget/")


async def test_a_program_goes_on_on_another_node(scene: Scene, tmp_path: Path) -> None:
    preview = scene.platform.granted("POST", f"claims/{scene.uid}/move/?dry_run=true", {"node": scene.new})
    assert (preview["moves_by"], preview["not_carried"]) == ("carry", None)
    shell = Shell(tmp_path, GPUCLOUD_URL=scene.platform.url, GPUCLOUD_TOKEN=scene.platform.token)
    moved = shell.run("claim", "move", scene.uid, "--node", scene.new, "--wait", "60s")
    assert moved.code == 0, moved
    assert scene.settle() == scene.new
    await goes_on(scene.out)
    scene.check_books(scene.new)
    # And back, where an image of it may not be in the way.
    scene.platform.granted("POST", f"claims/{scene.uid}/move/?wait=60", {"anywhere": True})
    assert scene.settle() == scene.old
    await goes_on(scene.out)
    scene.check_books(scene.old)
    check_chain(scene.out)


def chosen(part: str, step: str) -> Any:
    """Return the parameters; `make test` kills each agent once."""
    short = (part, step) in {("old agent", "sending"), ("new agent", "restoring")}
    return pytest.param(part, step, marks=[] if short else LONG)


@pytest.mark.parametrize(("part", "step"), [chosen(part, step) for part in PARTS for step in STEPS])
async def test_no_step_is_lost_or_taken_twice_whatever_part_is_killed(scene: Scene, part: str, step: str) -> None:
    insist(scene.platform, "POST", f"claims/{scene.uid}/move/", {"node": scene.new})
    scene.meet(step)
    await scene.kill(part)
    where = scene.settle()
    await goes_on(scene.out)
    scene.check_books(where)
    check_chain(scene.out)
    # Whatever happened, it can be ordered again.
    if where == scene.old:
        insist(scene.platform, "POST", f"claims/{scene.uid}/move/", {"node": scene.new})
        assert scene.settle() == scene.new
        await goes_on(scene.out)
        scene.check_books(scene.new)
        check_chain(scene.out)
