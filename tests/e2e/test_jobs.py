"""A job the whole way: command, API, server, agent, keeper, program, and its output back in the terminal."""

import fcntl
import itertools
import json
import os
import pty
import select
import shutil
import struct
import subprocess
import sys
import termios
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
    command = [sys.executable, "-m", "gpucloud_cli", *words]
    pipe = subprocess.PIPE
    environment = environment_of(platform, tenant)
    return subprocess.Popen(command, env=environment, text=True, stdout=pipe, stderr=pipe, **more)


def environment_of(platform: Platform, tenant: str) -> dict[str, str]:
    """Return the environment of the command's user."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'cli'}",
        "GPUCLOUD_URL": platform.url,
        "GPUCLOUD_TOKEN": platform.token,
        "GPUCLOUD_TENANT": tenant,
    }


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
    shown = gpucloud(platform, tenant, "job", "show", "sh", "-o", "json").communicate(timeout=60)[0]
    assert (json.loads(shown)["name"], json.loads(shown)["exit_code"]) == ("sh", 7)


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


def test_a_directory_goes_to_the_node_and_is_uploaded_once(platform: Platform, tenant: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/numbers").write_text("20\n22\n")
    (tmp_path / "data/big.bin").write_bytes(os.urandom(1 << 20))
    (tmp_path / "train.sh").write_text(
        "echo sum $(paste -sd+ data/numbers | bc 2>/dev/null || echo 42); ls data; exit 5\n"
    )
    for turn in range(2):
        code, out, messages = ended(platform, tenant, "--dir", str(tmp_path), "--", "sh", "train.sh")
        assert code == 5, messages
        assert out == "sum 42\nbig.bin\nnumbers\n"
        assert "3 files of" in messages
        assert ("which the server has" in messages) == bool(turn)
    code, out, messages = ended(platform, tenant, "--dir", str(tmp_path), "--exclude", "*.bin", "--", "ls", "data")
    assert (code, out) == (0, "numbers\n"), messages


def test_a_repository_is_cloned_on_the_node_with_live_words(platform: Platform, tenant: str, tmp_path: Path) -> None:
    who = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@x", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@x"}
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **who}
    work = tmp_path / "train"
    work.mkdir()
    (work / "train.sh").write_text("echo begins; sleep 3; echo ends; exit 6\n")
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run(["git", *words], cwd=work, env=environment, check=True)
    url = f"file://{work}"
    follower = gpucloud(
        platform, tenant, "job", "run", *SHARE, "--wait", "--git", f"{url}@main", "--", "sh", "train.sh"
    )
    assert follower.stdout is not None
    while "begins" not in (line := follower.stdout.readline()):
        assert line
    # Its words come while it runs.
    assert follower.poll() is None
    rest, messages = follower.communicate(timeout=60)
    assert (rest, follower.returncode) == ("ends\n", 6), messages
    code, out, messages = ended(platform, tenant, "--git", f"{url}@nowhere", "--", "true")
    assert code == 125
    assert "nowhere" in out
    assert "git could not clone" in messages


def test_an_array_and_a_job_after_it(platform: Platform, tenant: str) -> None:
    run_array(platform, tenant, size=6, at_once=3)


@pytest.mark.long
def test_an_array_of_fifty(platform: Platform, tenant: str) -> None:
    run_array(platform, tenant, size=50, at_once=10)


def run_array(platform: Platform, tenant: str, *, size: int, at_once: int) -> None:
    """Run an array of which one job fails, and jobs after it."""
    small = ("--core", "5", "--memory", "64MiB")
    script = "echo job $GPUCLOUD_ARRAY_INDEX of $GPUCLOUD_ARRAY_SIZE; [ $GPUCLOUD_ARRAY_INDEX != 2 ]"
    follower = gpucloud(
        platform, tenant, "job", "run", *small, "--name", "sweep", "--array", str(size), "--at-once", str(at_once),
        "--wait", "--", "sh", "-c", script,
    )  # fmt: skip
    array = until(
        lambda: platform.granted("GET", f"job-arrays/?tenant={tenant}")["results"], seconds=60, what="the array"
    )[0]
    after = gpucloud(
        platform, tenant, "job", "run", *small, "--after-any", "sweep", "--wait", "--", "echo", "afterwards"
    )
    while follower.poll() is None:
        jobs = platform.granted("GET", f"job-arrays/{array['uid']}/")["jobs"]
        assert jobs.get("running", 0) + jobs.get("queued", 0) <= at_once
        time.sleep(0.5)
    _, messages = follower.communicate(timeout=60)
    assert follower.returncode == 1, messages
    assert f"{size - 1} succeeded, 1 failed" in messages
    out, messages = after.communicate(timeout=60)
    assert (after.returncode, out) == (0, "afterwards\n"), messages
    shown = gpucloud(platform, tenant, "job", "logs", "sweep", "--index", "3")
    assert shown.communicate(timeout=60)[0] == f"job 3 of {size}\n"


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
def test_the_documented_upload_with_curl(platform: Platform, tenant: str, tmp_path: Path) -> None:
    text = (ROOT / "docs/jobs.md").read_text().partition("uploads with curl, in pieces:\n\n")[2]
    lines = itertools.takewhile(lambda line: line.startswith("    "), text.splitlines())
    (tmp_path / "data").write_bytes(os.urandom(700_000))
    (tmp_path / "train.py").write_text("print('came by curl')\n")
    environment = {
        "PATH": os.environ["PATH"],
        "GPUCLOUD_URL": platform.url,
        "GPUCLOUD_TOKEN": platform.token,
        "GPUCLOUD_TENANT": tenant,
    }
    script = "\n".join(line[4:] for line in lines) + "\necho; echo uid $uid"
    said = subprocess.run(
        ["bash", "-ec", script], check=False, cwd=tmp_path, env=environment, text=True, capture_output=True
    )
    assert said.returncode == 0, said.stderr
    assert '"complete":true' in said.stdout
    asked = {
        "tenant": tenant, "command": ["python3", "train.py"], "core_request": 20, "memory_mib": 64,
        "files": said.stdout.split()[-1],
    }  # fmt: skip
    job = platform.granted("POST", "jobs/", asked)
    until(lambda: platform.granted("GET", f"jobs/{job['uid']}/")["state"] == "succeeded", seconds=60, what="its end")
    assert platform.granted("GET", f"jobs/{job['uid']}/output/")["text"] == "came by curl\n"


def test_a_terminal_in_a_running_job(platform: Platform, tenant: str) -> None:
    follower = gpucloud(platform, tenant, "job", "run", *SHARE, "--wait", "--name", "shell", "--", "sleep", "300")
    job = until(lambda: running(platform, tenant), seconds=60, what="the job to run")
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
    script = "stty size; echo claim $GPUCLOUD_CLAIM; read word; echo said $word; exit 9"
    command = [sys.executable, "-m", "gpucloud_cli", "job", "exec", "shell", "--", "sh", "-c", script]
    process = subprocess.Popen(
        command, env=environment_of(platform, tenant) | {"TERM": "xterm"}, stdin=slave, stdout=slave, stderr=slave
    )
    os.close(slave)
    text = read_until(master, b"claim " + job["claim"].encode(), seconds=60)
    assert b"33 77" in text
    os.write(master, b"hello\n")
    assert b"said hello" in read_until(master, b"said hello", seconds=30)
    assert process.wait(60) == 9
    os.close(master)
    # It ends with the run, in words.
    last = gpucloud(
        platform, tenant, "job", "exec", "shell", "--", "sh", "-c", "echo begun; sleep 200", stdin=subprocess.DEVNULL
    )
    time.sleep(3)
    gpucloud(platform, tenant, "job", "stop", "shell").communicate(timeout=60)
    out, messages = last.communicate(timeout=60)
    assert last.returncode != 0, (out, messages)
    follower.communicate(timeout=60)


def read_until(descriptor: int, wanted: bytes, *, seconds: float) -> bytes:
    """Return what was read from the terminal once it contains this."""
    text, end = b"", time.monotonic() + seconds
    while wanted not in text:
        left = end - time.monotonic()
        assert left > 0, text
        if select.select([descriptor], [], [], left)[0]:
            try:
                text += os.read(descriptor, 4096)
            except OSError as error:
                # The other side has closed the terminal.
                raise AssertionError(text) from error
    return text
