"""Memory that an owner does not use is lent to a best-effort claim's program, and leaves when the owner allocates."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.agent.stage import BUILD, Stage, tether
from tests.cli.commands import new_name
from tests.e2e.kinds import GPULOAD
from tests.platform import Json, Platform, until

pytestmark = [pytest.mark.serial, pytest.mark.timeout(240)]

GIB = 1024
GPU, PROMISED, OWNED = 6 * GIB, GIB, 4 * GIB
# Contexts take a part of what is promised.
BORROWED, TAKEN = 4 * GIB, 3 * GIB


class Scene:
    """A node of one GPU of 6 GiB in a pool that lends memory, a borrower of up to 6 GiB and an owner of 4."""

    def __init__(self, platform: Platform, directory: Path, run_dir: Path) -> None:
        self.platform, self.directory, self.name = platform, directory, new_name("lent")
        self.tenant = platform.new_tenant(self.name)
        platform.granted("POST", "pools/", {"name": self.name, "lend_memory": True, "sharing_policy": "preempt"})
        made = platform.granted("POST", "nodes/", {"name": self.name, "pool": self.name})
        self.stage = Stage(directory, run_dir, None, gpus=1, name=self.name, shape=("--memory", f"{GPU}MiB"))
        self._token = {"GPUCLOUD_ENROL_TOKEN": made["enrolment_token"], "GPUCLOUD_SUSPEND_MEMORY_MIB": str(16 * GIB)}
        self.start_agent()
        self.programs: list[subprocess.Popen[bytes]] = []

    def start_agent(self) -> None:
        self.stage.start(server=self.platform.url, **self._token)
        until(lambda: self.node()["state"] == "ready", what="the node to be ready")

    def node(self) -> Json:
        found: Json = self.platform.granted("GET", f"nodes/{self.name}/")
        return found

    def measured(self, claim: Json) -> dict[str, Any]:
        """Return the claim's latest sample."""
        (series,) = self.platform.granted("GET", f"utilization/?claim={claim['uid']}")["series"]
        return {name: column[-1] for name, column in series.items() if isinstance(column, list) and column}

    def conditions(self, claim: Json) -> set[str]:
        """Return the types of the claim's conditions."""
        return {one["type"] for one in self.platform.granted("GET", f"claims/{claim['uid']}/")["conditions"]}

    def moved_since(self, claim: Json, begin: str) -> float:
        """Return the most that moved in a second since then, in MiB."""
        (series,) = self.platform.granted("GET", f"utilization/?claim={claim['uid']}&from={begin}&step=1")["series"]
        return max((one or 0 for one in series.get("moved_mib_per_second", ())), default=0)

    def claim(self, name: str, **facts: Any) -> Json:
        body = {"tenant": self.tenant, "pool": self.name, "name": name, "core_request": 20, "core_limit": 100, **facts}
        made: Json = self.platform.granted("POST", "claims/?wait=60", body)
        assert made["state"] == "active", made
        return made

    def run(self, claim: Json, memory_mib: int) -> Path:
        """Start a program that takes this memory and computes; return its log."""
        log = self.start(claim, "--kernel-us", "1000", "--memory", f"{memory_mib}MiB")
        until(lambda: any(one.get("event") == "hold" for one in lines(log)), what="the program to have its memory")
        (held,) = [one for one in lines(log) if one.get("event") == "hold"]
        assert held["error_name"] == "CUDA_SUCCESS", lines(log)
        return log

    def start(self, claim: Json, *options: str) -> Path:
        """Start a GPU program of the claim; return its log."""
        return self.execute(claim, str(GPULOAD), "--json", *options)

    def execute(self, claim: Json, *command: str) -> Path:
        """Start a program of the claim; return its log."""
        log: Path = self.directory / claim["name"]
        answer = self.platform.granted("GET", f"claims/{claim['uid']}/env/")
        environment = self.stage.environment(
            GPUCLOUD_CLAIM_SECRET=answer["secret"],
            GPUCLOUD_AGENT_SOCKET=answer["agent_socket"],
        )
        # Memory is lent only where it is counted in the kernel: the simulated one comes behind libvcuda.
        kernel = f'LD_PRELOAD="$LD_PRELOAD:{BUILD}/sim/libsimkernel.so" exec "$0" "$@"'
        program = ("sh", "-c", kernel, *command)
        line = tether(sys.executable, "-m", "agent", "exec", claim["uid"], "--", *program)
        with log.open("wb") as output:
            self.programs.append(subprocess.Popen(line, env=environment, stdout=output, stderr=output))
        return log

    def close(self) -> None:
        for program in self.programs:
            program.kill()
            program.wait()
        self.stage.close()


def lines(log: Path) -> list[Json]:
    return [json.loads(line) for line in log.read_text().splitlines() if line[:1] + line[-1:] == "{}"]


def goes_on(log: Path) -> None:
    """Wait until the program has computed for two more seconds."""
    begun = len(lines(log))
    until(lambda: len(lines(log)) >= begun + 3, what="the program to go on")


@pytest.fixture
def scene(platform: Platform, tmp_path: Path) -> Iterator[Scene]:
    run_dir = Path(tempfile.mkdtemp(prefix="gpucloud-test-", dir="/dev/shm"))
    it = Scene(platform, tmp_path, run_dir)
    yield it
    it.close()
    shutil.rmtree(run_dir, ignore_errors=True)


def test_an_owner_gets_what_was_lent_and_both_programs_go_on_whatever_dies(scene: Scene) -> None:
    # It leaves half of the compute to the borrower.
    owner = scene.claim("owner", memory_mib=OWNED, core_limit=50)
    facts = {"memory_mib": PROMISED, "memory_limit_mib": GPU, "class": "best-effort"}
    borrower = scene.claim("borrower", **facts)
    assert scene.node()["host_memory_used_mib"] == GPU - PROMISED
    borrowing = scene.run(borrower, BORROWED)
    goes_on(borrowing)
    begun = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    until(lambda: (scene.measured(borrower).get("borrowed_mib") or 0) >= BORROWED - PROMISED, what="it to be measured")
    assert scene.measured(borrower)["memory_out_mib"] == 0
    # More than is free: a part of what was lent leaves.
    owning = scene.run(owner, TAKEN)
    goes_on(owning)
    goes_on(borrowing)
    until(lambda: (scene.measured(borrower).get("memory_out_mib") or 0) > 0, what="what left to be measured")
    out = scene.measured(borrower)
    # Contexts take a part of the GPU.
    assert BORROWED + TAKEN - GPU <= out["memory_out_mib"] <= BORROWED, out
    assert out["memory_mib"] + out["memory_out_mib"] >= BORROWED, "nothing of it is lost"
    until(lambda: "memory-out" in scene.conditions(borrower), what="the claim to stand aside")
    until(lambda: scene.moved_since(borrower, begun) > 0, what="the move to be measured")
    assert "borrowed_mib" not in scene.measured(owner)
    # The agent dies while memory is out, and a new one adopts both.
    agent = scene.stage.agent
    assert agent is not None
    agent.kill()
    agent.wait()
    scene.start_agent()
    goes_on(owning)
    goes_on(borrowing)
    # The owner ends: what left comes back, and no claim holds anything afterwards.
    scene.programs[1].kill()
    scene.programs[1].wait()
    goes_on(borrowing)
    until(lambda: "memory-out" not in scene.conditions(borrower), what="the claim not to stand aside")
    for claim in (owner, borrower):
        scene.platform.granted("DELETE", f"claims/{claim['uid']}/?wait=60")
    assert scene.node()["host_memory_used_mib"] == 0
    assert set(scene.platform.used(scene.tenant).values()) == {0}


def test_a_raised_limit_lends_more_to_the_running_program(scene: Scene) -> None:
    facts = {"memory_mib": PROMISED, "memory_limit_mib": 2 * GIB, "class": "best-effort"}
    borrower = scene.claim("borrower", **facts)
    log = scene.start(borrower, "--memory", "1MiB", "--grow", f"{3 * GIB}MiB", "--every", "0.2")

    def grown() -> list[str]:
        return [one["error_name"] for one in lines(log) if one.get("event") == "grow"]

    until(lambda: "CUDA_ERROR_OUT_OF_MEMORY" in grown(), what="the program to be refused")
    assert "CUDA_SUCCESS" not in grown()
    scene.platform.granted("PATCH", f"claims/{borrower['uid']}/", {"memory_limit_mib": 5 * GIB})
    until(lambda: "CUDA_SUCCESS" in grown(), what="the program to get more")


# It borrows 4 GiB, and begins a stream capture that it never ends.
CAPTURES = """
import ctypes, time
cuda = ctypes.CDLL("libcuda.so.1")
context, stream, at = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
errors = [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context)]
errors += [cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(1 << 30)) for _ in range(4)]
errors += [cuda.cuStreamCreate(ctypes.byref(stream), 1), cuda.cuStreamBeginCapture_v2(stream, 0)]
print(errors, flush=True)
time.sleep(300)
"""


def test_a_borrower_that_gives_nothing_back_is_ended_and_the_owner_gets_its_memory(scene: Scene) -> None:
    owner = scene.claim("owner", memory_mib=OWNED)
    borrower = scene.claim("borrower", **{"memory_mib": PROMISED, "memory_limit_mib": GPU, "class": "best-effort"})
    log = scene.execute(borrower, sys.executable, "-c", CAPTURES)
    until(lambda: log.read_text().strip(), what="the borrower to have its memory")
    assert log.read_text().strip() == str([0] * 9)
    (program,) = scene.programs

    scene.run(owner, TAKEN)

    assert program.wait(timeout=10) == -9
    until(lambda: told(scene, "lent-memory-kept"), what="the event")
    assert "while a claim to which it is promised waited" in told(scene, "lent-memory-kept")[0]


def test_a_suspended_owner_comes_back_to_memory_that_was_lent_meanwhile(scene: Scene) -> None:
    owner = scene.claim("owner", memory_mib=OWNED)
    owned = scene.run(owner, TAKEN)
    post = scene.platform.granted
    post("POST", f"claims/{owner['uid']}/suspend/", {})
    state = f"claims/{owner['uid']}/"
    until(lambda: scene.platform.granted("GET", state)["state"] == "suspended", what="the owner to be suspended")
    borrower = scene.claim("borrower", **{"memory_mib": PROMISED, "memory_limit_mib": GPU, "class": "best-effort"})
    log = scene.run(borrower, BORROWED)

    post("POST", f"claims/{owner['uid']}/resume/", {})

    until(lambda: scene.platform.granted("GET", state)["state"] == "active", what="the owner to be back")
    goes_on(owned)
    goes_on(log)


def told(scene: Scene, code: str) -> list[str]:
    """Return the details of the node's events with this code."""
    found = scene.platform.granted("GET", f"audit/?action=agent.{code}&limit=100")["results"]
    return [one["after"]["detail"] for one in found]
