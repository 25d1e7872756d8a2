"""A job whose platform is killed around it, and one that many people follow."""

import http.client
import json
import os
import random
import threading
import time
import urllib.error
from pathlib import Path

import pytest

from tests.platform import Json, Platform, until
from tests.processes import alive

pytestmark = [
    pytest.mark.serial,
    pytest.mark.long,
    pytest.mark.timeout(600),
    # The agent's own tests start programs of jobs as other users.
    pytest.mark.skipif(os.geteuid() == 0, reason="a demo's agent that runs as root starts no jobs"),
]

PARTS = ("server", "worker", "scheduler", "agent-sim-1", "server", "agent-sim-1", "worker", "agent-sim-1")
FOLLOWERS = 200
# Parts that are on their way, in all their forms: one MiB for each follower, whatever the length of the log.
MOST_GROWTH_MIB = FOLLOWERS


@pytest.fixture
def tenant(platform: Platform) -> str:
    platform.granted("PATCH", "pools/default/", {"jobs": True})
    until(lambda: platform.granted("GET", "nodes/sim-1/")["jobs"], seconds=30, what="the node to offer jobs")
    return platform.new_tenant(f"jobs-{os.urandom(4).hex()}", core=1000)


def start(platform: Platform, tenant: str, *command: str) -> Json:
    """Start a job; return it."""
    wanted = {"tenant": tenant, "name": f"job-{os.urandom(3).hex()}", "command": list(command)}
    job: Json = platform.granted("POST", "jobs/", wanted | {"core_request": 10, "memory_mib": 256})
    return job


def find(platform: Platform, job: Json) -> Json | None:
    """Return the job as it is now; None while the server is away."""
    try:
        answer = platform.call("GET", f"jobs/{job['uid']}/")
    except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError):
        return None
    return answer.body if answer.status == 200 else None


def in_state(platform: Platform, job: Json, *states: str) -> Json | None:
    """Return the job once it is in one of these states."""
    found = find(platform, job)
    return found if found is not None and found["state"] in states else None


def read_all(platform: Platform, job: Json) -> str:
    """Return all of the last run's output."""
    text: str = ""
    offset = 0
    while True:
        part = platform.granted("GET", f"jobs/{job['uid']}/output/?offset={offset}")
        text += part["text"]
        if part["next_offset"] == offset:
            return text
        offset = part["next_offset"]


def test_a_log_has_no_hole_and_an_exit_code_is_known_whatever_is_killed(platform: Platform, tenant: str) -> None:
    lines = 1500
    script = f"i=0; while [ $i -lt {lines} ]; do i=$((i+1)); echo line $i of the log; sleep 0.03; done; exit 5"
    job = start(platform, tenant, "sh", "-c", script)
    until(lambda: in_state(platform, job, "running"), seconds=60, what="the job to run")
    chance = random.Random(7)  # noqa: S311 - the same kills each time
    for part in PARTS:
        time.sleep(chance.uniform(0.5, 4))
        platform.kill(part)
        platform.pid(part)
    ended = until(lambda: in_state(platform, job, "failed", "succeeded", "stopped"), seconds=180, what="its end")
    assert (ended["state"], ended["exit_code"], ended["runs"]) == ("failed", 5, 1)
    assert read_all(platform, job) == "".join(f"line {number} of the log\n" for number in range(1, lines + 1))


def test_a_node_that_dies_loses_the_run_and_says_so(platform: Platform, tenant: str) -> None:
    job = start(platform, tenant, "sh", "-c", "i=0; while :; do i=$((i+1)); echo line $i; sleep 0.05; done")
    until(lambda: in_state(platform, job, "running"), seconds=60, what="the job to run")
    until(lambda: "line 20\n" in read_all(platform, job), seconds=60, what="some output")
    keepers = [
        int(entry.name)
        for entry in Path("/proc").glob("[0-9]*")
        if b"agent.jobs.keeper" in _command_line(entry) and str(platform.state).encode() in _command_line(entry)
    ]
    assert keepers
    for pid in keepers:
        os.kill(pid, 9)
    platform.kill("agent-sim-1")
    ended = until(lambda: in_state(platform, job, "failed"), seconds=120, what="its end")
    assert ended["exit_code"] is None
    assert "lost" in ended["reason"]
    text = read_all(platform, job)
    assert text == "".join(f"line {number}\n" for number in range(1, text.count("\n") + 1))
    assert not any(alive(pid) for pid in keepers)


def _command_line(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""


def test_the_servers_memory_is_flat_while_many_follow(platform: Platform, tenant: str) -> None:
    """All follow a log of 100 kB a second as the command does: from its offset on, waiting for the next part."""
    line = "x" * 99
    script = f"for i in $(seq 20); do yes {line} | head -n 1000; sleep 1; done; echo end"
    follow(platform, start(platform, tenant, "sh", "-c", "sleep 2; echo end"), 1)
    before = resident_mib(platform.pid("server"))
    job = start(platform, tenant, "sh", "-c", script)
    peaks: list[float] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.2):
            peaks.append(resident_mib(platform.pid("server")))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        lengths = follow(platform, job, FOLLOWERS)
    finally:
        done.set()
        watcher.join()
    assert lengths == [20 * 1000 * 100 + len("end\n")] * FOLLOWERS
    assert max(peaks) - before < MOST_GROWTH_MIB, (before, max(peaks))


def follow(platform: Platform, job: Json, people: int) -> list[int]:
    """Let so many people follow the job to the end of its output; return the length that each has read."""
    found: list[int] = []

    def read() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", platform.port, timeout=300)
        headers = {"Authorization": f"Bearer {platform.token}"}
        offset = length = 0
        while True:
            path = f"/api/v1/jobs/{job['uid']}/output/?offset={offset}&wait=20"
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            body = response.read()
            if response.status != 200:
                time.sleep(1)
                continue
            part = json.loads(body)
            length += len(part["text"])
            offset = part["next_offset"]
            if part["complete"]:
                break
        connection.close()
        found.append(length)

    threads = [threading.Thread(target=read) for _ in range(people)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
