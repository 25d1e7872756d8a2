"""The launcher of `make demo`: it starts, resumes, and leaves nothing behind however it ends."""

import json
import re
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.demo.nodes import Node
from deploy.demo.programs import CONTROL_PLANE, Commands, Workload
from deploy.demo.state import State
from tests.platform import STOP_SECONDS, Platform
from tests.processes import alive, eventually

pytestmark = [pytest.mark.serial, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """Create one state for all tests here: a start takes a quarter of a minute, and many processes."""
    platform = Platform(tmp_path_factory.mktemp("lives") / "demo", programs=True)
    yield platform
    platform.stop()


@pytest.fixture
def running(place: Platform) -> Platform:
    """Return the running launcher: started, or resumed if a test has ended it."""
    if place._process is None or place._process.poll() is not None:
        place.start()
    return place


def pids(platform: Platform) -> dict[str, int]:
    """Return the pids of all programs, without the launcher."""
    told: dict[str, int] = json.loads((platform.state / "pids.json").read_text())
    return {name: pid for name, pid in told.items() if name != "launcher"}


def launcher(platform: Platform) -> subprocess.Popen[bytes]:
    assert platform._process is not None
    return platform._process


def claims(platform: Platform) -> dict[str, str]:
    """Return states by uid."""
    return {claim["uid"]: claim["state"] for claim in platform.granted("GET", "claims/")["results"]}


def programs_run(platform: Platform, count: int) -> bool:
    """Return True if so many seeded programs run, and still do a second later."""
    before = {name: pid for name, pid in pids(platform).items() if name.startswith("program-")}
    time.sleep(1)
    return len(before) == count and all(map(alive, before.values()))


def test_it_says_where_it_is_and_who_may_sign_in(running: Platform) -> None:
    said = running.log.read_text()
    assert f"ready: {running.url}" in said.splitlines()
    assert re.search(r"sign in +operator / \S+", said)
    for name in ("operator.token", "operator.password", "secret.key"):
        assert stat.S_IMODE((running.state / name).stat().st_mode) == 0o600


def test_agents_and_programs_get_none_of_the_control_planes_secrets(running: Platform) -> None:
    secret = (running.state / "secret.key").read_text().strip().encode()
    environments = {name: Path(f"/proc/{pid}/environ").read_bytes() for name, pid in pids(running).items()}
    # The control: the server does get it, so this would be seen.
    assert secret in environments["server"]
    for name, environment in environments.items():
        if name.startswith(("agent-", "program-")):
            assert secret not in environment, name
            assert b"DATABASE_URL=" + b"postgresql://gpucloud@" not in environment, name


def test_they_get_none_of_those_that_the_launcher_itself_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"DATABASE_URL", "REDIS_URL", "SECRET_KEY", "REDIS_PREFIX", "POSTGRES_PASSWORD", "GPUCLOUD_TOKEN"}
    for name in given:
        monkeypatch.setenv(name, f"the launcher's {name}")
    monkeypatch.setenv("KEPT", "anyone's")
    state = State.at(tmp_path / "demo")
    commands = Commands(state, port=1, database_url="database", redis_url="redis")
    workload = Workload(claim="c" * 36, secret="its own", agent_socket="/agent.sock", command=("true",))
    server = commands.server().environment or {}
    agent = commands.agent(Node("real", "default", simulated=False)).environment or {}
    program = commands.workload(workload).environment or {}
    # The control: the server has them, its own before the shell's.
    assert given <= server.keys()
    assert (server["DATABASE_URL"], server["REDIS_PREFIX"]) == ("database", "the launcher's REDIS_PREFIX")
    for environment in (agent, program):
        assert not CONTROL_PLANE & environment.keys()
        assert environment["KEPT"] == "anyone's"
    assert program["GPUCLOUD_CLAIM_SECRET"] == "its own"


def test_a_second_launcher_on_the_same_state_is_refused(running: Platform) -> None:
    other = Platform(running.state)
    other.log = running.state.with_name("other.log")
    with pytest.raises(AssertionError, match="another demo runs in"):
        other.start()
    assert claims(running)


def test_stopped_it_ends_every_process_that_it_started_and_the_next_start_resumes_it(running: Platform) -> None:
    first, started = claims(running), pids(running)
    assert set(first.values()) == {"active"}
    assert eventually(lambda: programs_run(running, len(first)), seconds=20)
    process = launcher(running)
    process.send_signal(signal.SIGINT)
    assert process.wait(STOP_SECONDS) == 0
    assert not [name for name, pid in started.items() if alive(pid)]
    assert not (running.state / "pids.json").exists()
    running.start()
    assert eventually(lambda: claims(running) == first, seconds=20)
    assert eventually(lambda: programs_run(running, len(first)), seconds=20)


def test_killing_it_ends_them_too_and_the_next_start_goes_on(running: Platform) -> None:
    started = pids(running)
    launcher(running).kill()
    launcher(running).wait()
    assert eventually(lambda: not any(map(alive, started.values())), seconds=10)
    running.start()
    assert claims(running)


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    platform = Platform(tmp_path / "demo")
    with socket.socket() as other:
        other.bind(("127.0.0.1", platform.port))
        other.listen()
        with pytest.raises(AssertionError, match=f"listens on 127.0.0.1:{platform.port}"):
            platform.start()
