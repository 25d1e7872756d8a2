"""`make demo`'s launcher, whole: it comes up, resumes, and leaves nothing behind however it ends."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import alive, eventually

ROOT = Path(__file__).resolve().parent.parent.parent
READY_SECONDS = 90.0
STOP_SECONDS = 40.0

pytestmark = [pytest.mark.serial, pytest.mark.timeout(240)]


class Demo:
    """One launcher in a process of its own, on a port of its own."""

    def __init__(self, state: Path) -> None:
        self.state = state
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.output = state.with_suffix(".out")

    @contextlib.contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        """Up and ready; ended at the end, if it is not by then."""
        environment = {name: value for name, value in os.environ.items() if not name.endswith(("_URL", "_PREFIX"))}
        environment |= {"DEMO_DIR": str(self.state), "PORT": str(self.port)}
        command = [sys.executable, "-m", "deploy.demo"]
        with self.output.open("wb") as out:
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT)
        try:
            done = eventually(lambda: self.ready() or process.poll() is not None, seconds=READY_SECONDS)
            assert done and self.ready(), self.said()  # noqa: PT018
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(STOP_SECONDS)

    def said(self) -> str:
        return self.output.read_text()

    def ready(self) -> bool:
        return f"\nready: http://127.0.0.1:{self.port}\n" in self.said()

    def pids(self) -> dict[str, int]:
        pids: dict[str, int] = json.loads((self.state / "pids.json").read_text())
        return pids

    def get(self, path: str) -> tuple[int, object]:
        """The operator's GET; the status and the parsed answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        token = (self.state / "operator.token").read_text().strip()
        with contextlib.closing(connection):
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def claims(self) -> dict[str, str]:
        """Uid to state."""
        status, page = self.get("/api/v1/claims/")
        assert status == 200
        assert isinstance(page, dict)
        return {claim["uid"]: claim["state"] for claim in page["results"]}


@pytest.fixture
def demo(tmp_path: Path) -> Demo:
    return Demo(tmp_path / "demo")


def test_it_comes_up_and_a_second_start_resumes_it(demo: Demo) -> None:
    with demo.running():
        assert demo.get("/readyz")[0] == 200
        secret = stat.S_IMODE((demo.state / "operator.token").stat().st_mode)
        first = demo.claims()
    assert secret == 0o600
    assert re.search(r"sign in +operator / \S+", demo.said())
    assert set(first.values()) == {"active"}
    with demo.running():
        assert eventually(lambda: demo.claims() == first, seconds=20)
        programs = [name for name in demo.pids() if name.startswith("program-")]
        assert len(programs) == len(first)


def test_stopping_it_ends_every_process_that_it_started(demo: Demo) -> None:
    with demo.running() as launcher:
        pids = demo.pids()
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(STOP_SECONDS) == 0
    assert not [name for name, pid in pids.items() if alive(pid)]
    assert not (demo.state / "pids.json").exists()


def test_killing_it_ends_them_too_and_the_next_start_goes_on(demo: Demo) -> None:
    with demo.running() as launcher:
        pids = {name: pid for name, pid in demo.pids().items() if name != "launcher"}
        launcher.kill()
        launcher.wait()
        assert eventually(lambda: not any(map(alive, pids.values())), seconds=10)
    with demo.running():
        assert demo.get("/readyz")[0] == 200


def test_a_port_that_is_taken_is_named(demo: Demo) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", demo.port))
        other.listen()
        with pytest.raises(AssertionError, match=f"listens on 127.0.0.1:{demo.port}"), demo.running():
            pass


def test_a_second_launcher_on_the_same_state_is_refused(demo: Demo) -> None:
    other = Demo(demo.state)
    other.output = demo.state.with_suffix(".other")
    with demo.running():
        with pytest.raises(AssertionError, match="another demo runs in"), other.running():
            pass
        assert demo.get("/readyz")[0] == 200
