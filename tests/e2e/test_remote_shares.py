"""`gpucloud run --remote` on a whole platform: the program here, its claim and a remoting server's double on a node."""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.agent.jobs import USERS
from tests.cli.commands import Shell, live_claims, new_name
from tests.platform import ROOT, Platform
from tests.processes import eventually

pytestmark = [pytest.mark.serial, pytest.mark.timeout(180)]

DOUBLE = ROOT / "tests" / "agent" / "remoting_double.py"
PYTHON = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
RUN = ("run", "--remote", "--core", "10", "--memory", "1GiB")
# A program that a component's client would be part of.
ASKS = """
import os, socket, sys
host, port = os.environ["LUPINE_SERVER"].split(":")
with socket.create_connection((host, int(port))) as made, made.makefile("rwb") as stream:
    for line in sys.argv[1:]:
        stream.write(line.encode() + b"\\n")
        stream.flush()
        print(stream.readline().decode().strip(), flush=True)
"""


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """Return a directory that a tenant's user may enter, with a server's double and the mark of a client's library."""
    with tempfile.TemporaryDirectory(prefix="gpucloud-test-", dir="/dev/shm") as name:
        place = Path(name)
        place.chmod(0o755)
        server = place / "lupine_driver_server"
        server.write_text(f"#!{PYTHON} -IS\n{DOUBLE.read_text()}")
        server.chmod(0o755)
        (place / "libcuda.so.1").write_bytes(b"LUPINE_SERVER x-lupine")
        yield place


@pytest.fixture(scope="module")
def remote_platform(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    environment = {
        "GPUCLOUD_REMOTE": "127.0.0.1:0",
        "GPUCLOUD_REMOTE_USERS": USERS,
        "GPUCLOUD_REMOTE_SERVER": str(place / "lupine_driver_server"),
    }
    with Platform(tmp_path_factory.mktemp("remote"), environment=environment) as platform:
        yield platform


@pytest.fixture
def tenant(remote_platform: Platform) -> str:
    return remote_platform.new_tenant(new_name("remote"))


@pytest.fixture
def max_(remote_platform: Platform, tenant: str, tmp_path: Path, place: Path) -> Shell:
    asked = {"name": "max", "tenant": tenant, "role": "member"}
    token = remote_platform.granted("POST", "tokens/", asked)["token"]
    home = tmp_path / "max"
    home.mkdir()
    return Shell(home, GPUCLOUD_URL=remote_platform.url, GPUCLOUD_TOKEN=token, GPUCLOUD_REMOTE_CLIENT=str(place))


def test_a_program_here_uses_a_claim_there(remote_platform: Platform, tenant: str, max_: Shell, place: Path) -> None:
    """Once operators allow it; the claim ends with the program, whose exit code is the command's."""
    refused = max_.run(*RUN, "--", "true")
    assert refused.code != 0
    assert "does not allow remote shares" in refused.err
    assert live_claims(remote_platform, tenant) == []

    remote_platform.granted("PATCH", "pools/default/", {"remote": True})
    remote_platform.granted("PATCH", f"tenants/{tenant}/", {"remote": True})
    lines = ("echo hello", "env GPUCLOUD_CLAIM", "env LD_PRELOAD", "routes")
    ended = max_.run(*RUN, "--", sys.executable, "-c", ASKS, *lines)
    assert ended.code == 0, ended
    hello, claim, preload, routes = ended.out.splitlines()
    assert (hello, routes) == ("hello", "0")
    assert "libvcuda.so" in preload
    assert claim in ended.err
    assert "round trips" in ended.err
    assert "wrong results" in ended.err
    assert live_claims(remote_platform, tenant) == []

    assert max_.run(*RUN, "--", "sh", "-c", "exit 7").code == 7
    assert max_.run(*RUN, "--", "no-such-command").code == 127
    told = max_.run(*RUN, "--", "env").out
    assert f"LD_LIBRARY_PATH={place}" in told
    assert "GPUCLOUD_TOKEN" not in told
    events = remote_platform.granted("GET", "audit/?action=claim.remote")["results"]
    assert len(events) == 4
    assert os.environ.get("GPUCLOUD_TOKEN") is None


def test_several_programs_use_one_claim_one_after_the_other(
    remote_platform: Platform, tenant: str, max_: Shell
) -> None:
    """It stays until it is released, and a claim that refuses remote use starts nothing."""
    remote_platform.granted("PATCH", "pools/default/", {"remote": True})
    remote_platform.granted("PATCH", f"tenants/{tenant}/", {"remote": True})
    made = max_.run("claim", "create", *RUN[2:], "--name", "tests", "--remote", "require", "--wait", "60s")
    assert made.code == 0, made
    (claim,) = live_claims(remote_platform, tenant)
    assert claim["remote"] == "require"
    for words in ("first", "second"):
        ended = max_.run("claim", "exec", "--remote", "tests", "--", sys.executable, "-c", ASKS, f"echo {words}")
        assert (ended.code, ended.out.strip()) == (0, words), ended
    assert max_.run("claim", "exec", "--remote", "tests", "--", "sh", "-c", "exit 7").code == 7
    assert max_.run("claim", "exec", "--remote", "tests", "--", "no-such-command").code == 127
    assert [one["uid"] for one in live_claims(remote_platform, tenant)] == [claim["uid"]]

    assert max_.run("claim", "resize", "tests", "--remote", "never").code == 0
    refused = max_.run("claim", "exec", "--remote", "tests", "--", "true")
    assert refused.code != 0
    assert "`remote` is never" in refused.err
    assert max_.run("claim", "release", "tests", "--wait", "60s").code == 0


WAITS = """
import os, pathlib, socket, sys
host, port = os.environ["LUPINE_SERVER"].split(":")
with socket.create_connection((host, int(port))) as made:
    made.sendall(b"echo in\\n")
    assert made.recv(100)
    pathlib.Path(sys.argv[1]).touch()
    sys.exit(9 if made.recv(100) == b"" else 0)
"""


def test_a_pool_that_is_switched_off_ends_its_present_clients(
    remote_platform: Platform, tenant: str, max_: Shell, tmp_path: Path
) -> None:
    """Within seconds, told why; the claim stays until its program has ended."""
    remote_platform.granted("PATCH", "pools/default/", {"remote": True})
    remote_platform.granted("PATCH", f"tenants/{tenant}/", {"remote": True})
    is_in = tmp_path / "in"
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(max_.run, *RUN, "--", sys.executable, "-c", WAITS, str(is_in))
        eventually(is_in.exists, seconds=60)
        (claim,) = live_claims(remote_platform, tenant)
        path = f"claims/{claim['uid']}/remote/"
        assert eventually(lambda: remote_platform.granted("GET", path)["connections"] == 1, seconds=30)
        assert "1 connections" in max_.run("claim", "describe", claim["uid"]).out
        remote_platform.granted("PATCH", "pools/default/", {"remote": False})
        started = time.monotonic()
        ended = running.result(60)
    assert ended.code == 9, ended
    assert "the claim's pool does not allow remote shares any more" in ended.err
    assert time.monotonic() - started < 30
    assert live_claims(remote_platform, tenant) == []
