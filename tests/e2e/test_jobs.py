"""A job the whole way: command, API, server, agent, keeper, program, and its output back in the terminal."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.claims import GPULOAD
from tests.platform import ROOT, Json, Platform, until

pytestmark = [
    pytest.mark.serial,
    pytest.mark.timeout(300),
    # The agent's own tests start programs of jobs as other users.
    pytest.mark.skipif(os.geteuid() == 0, reason="a demo's agent that runs as root starts no jobs"),
]

SHARE = ("--core", "20", "--memory", "512MiB")


@pytest.fixture
def tenant(platform: Platform) -> str:
    platform.granted("PATCH", "pools/default/", {"jobs": True})
    until(lambda: platform.granted("GET", "nodes/sim-1/")["jobs"], seconds=30, what="the node to offer jobs")
    return platform.new_tenant(f"jobs-{os.urandom(4).hex()}", core=1000)


def gpucloud(platform: Platform, tenant: str, *words: str, **more: Any) -> subprocess.Popen[str]:
    """Start the command as its user would."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'cli'}",
        "GPUCLOUD_URL": platform.url,
        "GPUCLOUD_TOKEN": platform.token,
        "GPUCLOUD_TENANT": tenant,
    }
    command = [sys.executable, "-m", "gpucloud_cli", *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, text=True, stdout=pipe, stderr=pipe, **more)


def ended(platform: Platform, tenant: str, *words: str) -> tuple[int, str, str]:
    """Run a job to its end; return its exit code, its output and the messages."""
    process = gpucloud(platform, tenant, "job", "run", *SHARE, "--wait", *words)
    out, messages = process.communicate(timeout=120)
    return process.returncode, out, messages


def test_a_command_runs_on_the_node_and_its_output_and_exit_code_come_back(platform: Platform, tenant: str) -> None:
    script = "echo $WHO is in $(basename $PWD); echo $CUDA_VISIBLE_DEVICES; echo wrong >&2; exit 7"
    code, out, messages = ended(platform, tenant, "--env", "WHO=ada", "--", "sh", "-c", script)
    assert code == 7, messages
    lines = out.splitlines()
    assert lines[0].startswith("ada is in ")
    assert lines[1].startswith("GPU-")
    assert lines[2] == "wrong"
    assert "failed: exit code 7" in messages


def test_a_gpu_program_has_the_limits_of_its_claim_and_a_stop_ends_it(platform: Platform, tenant: str) -> None:
    follower = gpucloud(
        platform, tenant, "job", "run", *SHARE, "--wait", "--name", "load", "--", GPULOAD, "--kernel-us", "1000"
    )
    job = until(lambda: running(platform, tenant), seconds=60, what="the job to run")
    claim = platform.granted("GET", f"claims/{job['claim']}/")
    assert (claim["state"], claim["core_request"]) == ("active", 20)
    usage = f"utilization/?claim={job['claim']}"
    until(lambda: "core" in json.dumps(platform.granted("GET", usage)), seconds=30, what="its use")
    # The server, then the agent are killed: the program goes on, and so does who follows.
    platform.kill("server")
    platform.kill("agent-sim-1")
    platform.pid("server")
    platform.pid("agent-sim-1")
    until(lambda: is_ready(platform), seconds=60, what="the node to be back")
    assert platform.granted("GET", f"jobs/{job['uid']}/")["state"] == "running"
    assert follower.poll() is None
    stopping = gpucloud(platform, tenant, "job", "stop", "load")
    said = stopping.communicate(timeout=60)
    assert stopping.returncode == 0, said
    _, messages = follower.communicate(timeout=60)
    # The program ends by itself after a SIGTERM; a job that was stopped is no success.
    assert follower.returncode == 1, messages
    assert "stopped by" in messages
    until(lambda: platform.granted("GET", f"claims/{job['claim']}/")["state"] == "released", seconds=60, what="its end")


def is_ready(platform: Platform) -> bool:
    """Return True if the server answers, and the node is connected."""
    try:
        return bool(platform.granted("GET", "nodes/sim-1/")["state"] == "ready")
    except OSError:
        return False


def running(platform: Platform, tenant: str) -> Json | None:
    """Return the running job of the tenant."""
    rows = platform.granted("GET", f"jobs/?tenant={tenant}&state=running")["results"]
    return rows[0] if rows else None


def test_retries_time_limits_and_cancelled_pipelines(platform: Platform, tenant: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = f"[ -e {mark} ] && echo second || {{ touch {mark}; echo first; exit 1; }}"
    code, out, messages = ended(platform, tenant, "--retries", "1", "--", "sh", "-c", script)
    assert (code, out) == (0, "first\nsecond\n"), messages
    begun = time.monotonic()
    code, _, messages = ended(platform, tenant, "--time-limit", "2s", "--", "sleep", "60")
    assert code == 143, messages
    assert "time limit" in messages
    assert time.monotonic() - begun < 40
    cancelled = gpucloud(
        platform, tenant, "job", "run", *SHARE, "--wait", "--stop-on-interrupt", "--name", "step", "--", "sleep", "60"
    )
    job = until(lambda: running(platform, tenant), seconds=60, what="the job to run")
    cancelled.terminate()
    cancelled.communicate(timeout=60)
    assert cancelled.returncode == 130
    until(lambda: platform.granted("GET", f"jobs/{job['uid']}/")["state"] == "stopped", seconds=60, what="its end")
