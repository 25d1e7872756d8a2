"""An MPS control daemon is started, adopted, watched and ended; what falls with it is reported."""

import asyncio
import contextlib
import os
import signal
import stat
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from agent.host import mps_places, processes
from agent.host.mps import Fall, MpsDaemon, find_groups, find_left
from agent.host.mps_places import TrustGroup, places
from tests.agent.stage import BUILD, GPULOAD, eventually

PROGRAM = str(BUILD / "sim" / "nvidia-cuda-mps-control")
Make = Callable[..., MpsDaemon]


class Scene:
    """Daemons of one run directory, on one virtual GPU."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.node = directory / "node"
        made: list[str | Path] = [
            BUILD / "simnode",
            "create",
            self.node,
            "--name",
            "mps-1",
            "--gpus",
            "1",
            "--memory",
            "24GiB",
        ]
        subprocess.run(made, check=True, capture_output=True)
        listed = subprocess.run([BUILD / "simnode", "show", self.node], check=True, capture_output=True, text=True)
        self.gpu = next(word for word in listed.stdout.split() if word.startswith("GPU-"))
        self.falls: list[Fall] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._programs: list[subprocess.Popen[bytes]] = []

    def make(self, tenant: str = "vision", *, program: str = PROGRAM) -> MpsDaemon:
        """Return a daemon that runs from now on."""
        group = TrustGroup(self.gpu, tenant)
        environment = {"PATH": os.environ["PATH"], "GPUCLOUD_SIM_NODE": str(self.node)}
        where = places(self.directory / "mps", group)
        daemon = MpsDaemon(group, where, program=program, environment=environment, report=self.falls.append)
        self._tasks.append(asyncio.ensure_future(daemon.run()))
        return daemon

    def load(self, daemon: MpsDaemon) -> "subprocess.Popen[bytes]":
        """Start a program that is a client of the daemon's server."""
        environment = {
            "LD_LIBRARY_PATH": str(BUILD / "sim"),
            "GPUCLOUD_SIM_NODE": str(self.node),
            "CUDA_MPS_PIPE_DIRECTORY": str(daemon.places.pipe),
        }
        made = subprocess.Popen([GPULOAD, "--seconds", "60"], env=environment, stdout=subprocess.DEVNULL)
        self._programs.append(made)
        return made

    async def leave(self) -> None:
        """Stop as an agent that is stopped does: daemons run on."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def clear(self) -> None:
        """End what a test has left."""
        for program in self._programs:
            program.kill()
            program.wait()
        for path in (self.directory / "mps").glob("*/pipe"):
            for one in find_left(path):
                processes.send(one, signal.SIGKILL)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    made = Scene(tmp_path)
    yield made
    await made.leave()
    made.clear()


async def test_a_program_is_a_client_of_the_daemons_server(scene: Scene) -> None:
    daemon = scene.make()
    await eventually(lambda: daemon.is_ready)
    program = scene.load(daemon)
    await eventually(lambda: daemon.servers)
    assert program.poll() is None
    await scene.leave()
    await daemon.end()
    assert program.wait(10) != 0, "its server is gone"
    assert not daemon.places.root.exists()
    assert not find_left(daemon.places.pipe)


async def test_a_killed_daemon_is_back_in_five_seconds_and_its_fall_is_reported(scene: Scene) -> None:
    daemon = scene.make()
    await eventually(lambda: daemon.is_ready)
    program = scene.load(daemon)
    await eventually(lambda: daemon.servers)
    killed, begun = daemon.process, time.monotonic()
    assert killed is not None
    assert processes.send(killed, signal.SIGKILL)
    await eventually(lambda: daemon.is_ready and daemon.process != killed)
    assert time.monotonic() - begun < 5
    assert program.wait(10) != 0, "the server of the dead daemon was ended: it would serve clients beside the next one"
    assert [fall.is_daemon for fall in scene.falls] == [True]
    assert "signal 9" in scene.falls[0].words
    again = scene.load(daemon)
    await eventually(lambda: daemon.servers)
    assert again.poll() is None


async def test_the_end_of_a_server_is_reported_and_the_daemon_starts_another(scene: Scene) -> None:
    daemon = scene.make()
    await eventually(lambda: daemon.is_ready)
    program = scene.load(daemon)
    server = next(iter(await eventually(lambda: daemon.servers)))
    kept = daemon.process
    processes.send(server, signal.SIGKILL)
    assert program.wait(10) != 0
    await eventually(lambda: scene.falls)
    assert not scene.falls[0].is_daemon
    assert str(server.pid) in scene.falls[0].words
    again = scene.load(daemon)
    await eventually(lambda: daemon.servers - {server})
    assert again.poll() is None
    assert daemon.process == kept


async def test_the_next_agent_adopts_the_daemon_and_its_clients_go_on(scene: Scene) -> None:
    daemon = scene.make()
    await eventually(lambda: daemon.is_ready)
    program = scene.load(daemon)
    servers = await eventually(lambda: daemon.servers)
    kept = daemon.process
    await scene.leave()
    assert find_groups(scene.directory / "mps") == {daemon.group: daemon.places}
    adopted = scene.make()
    await eventually(lambda: adopted.is_ready)
    assert adopted.process == kept
    assert adopted.servers == servers
    assert program.poll() is None
    await scene.leave()
    await adopted.end()
    program.wait(10)
    assert kept is not None
    assert not processes.alive(kept)


async def test_each_tenant_has_a_daemon_of_its_own(scene: Scene) -> None:
    mine, other = scene.make("vision"), scene.make("audio")
    await eventually(lambda: mine.is_ready and other.is_ready)
    programs = [scene.load(one) for one in (mine, other)]
    await eventually(lambda: mine.servers and other.servers)
    assert mine.servers.isdisjoint(other.servers)
    for server in mine.servers:
        processes.send(server, signal.SIGKILL)
    assert programs[0].wait(10) != 0
    await asyncio.sleep(0.5)
    assert programs[1].poll() is None, "a fall takes no other tenant's program"


async def test_a_daemon_that_cannot_start_says_why(scene: Scene) -> None:
    missing = scene.make(program="/nonexistent/nvidia-cuda-mps-control")
    await eventually(lambda: "cannot be started" in (missing.problem or ""))
    program = scene.directory / "old-mps-control"
    program.write_text("#!/bin/sh\necho 'Unknown option: -multiuser-server' >&2\nexit 1\n")
    program.chmod(0o755)
    old = scene.make("audio", program=str(program))
    await eventually(lambda: "Unknown option" in (old.problem or ""))
    assert not old.is_ready


async def test_only_the_groups_users_reach_its_sockets(scene: Scene) -> None:
    daemon = scene.make()
    await eventually(lambda: daemon.is_ready)
    assert stat.S_IMODE(daemon.places.root.stat().st_mode) == 0o700
    if os.getuid() != 0:
        return
    for path in (scene.directory, *scene.directory.parents):
        with contextlib.suppress(OSError):
            path.chmod(path.stat().st_mode | 0o011)
    daemon.places.admit([61001, 61002])
    assert [can_enter(daemon.places.socket, uid) for uid in (61001, 61002, 61003)] == [True, True, False]
    daemon.places.admit([61002])
    assert [can_enter(daemon.places.socket, uid) for uid in (61001, 61002, 61003)] == [False, True, False]
    daemon.places.admit([])
    assert [can_enter(daemon.places.socket, uid) for uid in (61001, 61002, 61003)] == [False, False, False]


def can_enter(socket: Path, uid: int) -> bool:
    """Return whether this user sees the socket."""
    return (
        subprocess.run(["/usr/bin/test", "-S", socket], user=uid, group=uid, extra_groups=[], check=False).returncode
        == 0
    )


def test_a_socket_of_the_longest_run_directory_fits() -> None:
    group = TrustGroup("GPU-00000000-0000-0000-0000-000000000000", "t" * 63)
    assert len(str(places(Path("/run/gpucloud/mps"), group).socket)) < 60
    assert mps_places.has_socket(Path("/nonexistent")) is False
