"""The Ray recipe: a real worker under a claim, whose tasks are held to the claim's memory."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.claims import GPULOAD
from tests.cli.commands import live_claims, new_name
from tests.platform import ROOT, Platform, until
from tests.ports import free_port

RAY = shutil.which("ray")
SIMULATED = ROOT / "libvcuda" / "build" / "sim"
# A task runs two programs, one within the claim's memory and one beyond it, and tells what it sees.
DRIVER = """
import json, os, subprocess, sys
import ray

@ray.remote(num_gpus=0.5)
def look(gpuload):
    said = []
    for memory in ("1GiB", "3GiB"):
        done = subprocess.run([gpuload, "--memory", memory, "--seconds", "1"], capture_output=True, text=True)
        said.append(done.stdout + done.stderr)
    tokens = [name for name in os.environ if name.startswith("GPUCLOUD_TOKEN")]
    return {"said": said, "claim": os.environ["GPUCLOUD_CLAIM"], "tokens": tokens}

ray.init(address=sys.argv[1], log_to_driver=False)
# One after the other: the claim has room for one of the programs.
print(json.dumps([ray.get(look.remote(sys.argv[2]), timeout=60) for _ in range(2)]))
"""

pytestmark = [
    pytest.mark.serial,
    pytest.mark.timeout(300),
    pytest.mark.skipif(RAY is None, reason="not on the PATH: ray"),
]


class Cluster:
    """A head without GPUs, and the recipe's worker under a claim."""

    def __init__(self, directory: Path, platform: Platform, tenant: str) -> None:
        assert RAY is not None
        token = platform.granted("POST", "tokens/", {"name": "ray", "tenant": tenant, "role": "member"})["token"]
        (directory / "token").write_text(token)
        self.python = str(Path(RAY).parent / "python")
        self.environment = {
            "PATH": f"{Path(RAY).parent}:{os.environ['PATH']}",
            "HOME": str(directory),
            "PYTHONPATH": str(ROOT / "cli"),
            "LD_LIBRARY_PATH": str(SIMULATED),
            "GPUCLOUD_URL": platform.url,
            "GPUCLOUD_TOKEN_FILE": str(directory / "token"),
            # Nothing is sent to Ray's makers.
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        self.log = directory / "log"
        self.processes: list[subprocess.Popen[bytes]] = []
        # Unix sockets have short paths; the head's directory is the worker's.
        self._temporary = Path("/tmp") / new_name("ray")  # noqa: S108

    def start(self) -> None:
        head = f"--head --num-gpus 0 --num-cpus 0 --port {free_port()} --include-dashboard false"
        run = "-m gpucloud_cli run --node sim-1 --core 40 --memory 2GiB --wait 1m --"
        self._start(f"{RAY} start {head} --temp-dir {self._temporary} --block")
        # Ray listens at the machine's own address, not at a loopback one.
        self.address = str(until(self._find_address, seconds=120, what="Ray's head"))
        worker = f"--address {self.address} --num-gpus 1 --num-cpus 2"
        self._start(f"{sys.executable} {run} {RAY} start {worker} --block")

    def _start(self, line: str) -> None:
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                line.split(), env=self.environment, stdout=log, stderr=log, start_new_session=True
            )
        self.processes.append(process)

    def _find_address(self) -> str | None:
        """Return the head's address, once it has said it."""
        assert self.processes[0].poll() is None, self.log.read_text()
        found = re.search(r"ray start --address='([^']+)'", self.log.read_text())
        return found and found[1]

    def ask(self) -> list[dict[str, Any]]:
        """Return what two tasks on the worker see."""
        done = subprocess.run(
            [self.python, "-c", DRIVER, self.address, GPULOAD],
            env=self.environment, capture_output=True, text=True, check=False, timeout=200,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr + self.log.read_text()
        found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
        return found

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(45)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        shutil.rmtree(self._temporary, ignore_errors=True)


@pytest.fixture
def tenant(platform: Platform) -> str:
    return platform.new_tenant(new_name("ray"))


@pytest.fixture
def cluster(tmp_path: Path, platform: Platform, tenant: str) -> Iterator[Cluster]:
    running = Cluster(tmp_path, platform, tenant)
    try:
        running.start()
        yield running
    finally:
        running.stop()


def test_tasks_of_a_worker_share_its_claim(cluster: Cluster, platform: Platform, tenant: str) -> None:
    tasks = cluster.ask()
    (claim,) = live_claims(platform, tenant)
    assert (claim["core_request"], claim["memory_mib"]) == (40, 2048)
    for task in tasks:
        fits, too_much = task["said"]
        assert "CUDA_ERROR" not in fits
        assert "held 1" in fits
        assert "CUDA_ERROR_OUT_OF_MEMORY" in too_much
        assert (task["claim"], task["tokens"]) == (claim["uid"], [])
    cluster.processes[1].terminate()
    cluster.processes[1].wait(60)
    until(lambda: not live_claims(platform, tenant), seconds=30, what="the claim to be released")
