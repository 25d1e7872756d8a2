"""Fixtures for the agent's tests: no Django, no database."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

# As in agent/kubelet/calls.py, before anything imports gRPC: the tests start programs, too.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from agent import wire
from tests.agent import forked
from tests.agent.control import Connection, Control
from tests.agent.kubelet import Kubelet
from tests.agent.plugin_watcher import PluginWatcher
from tests.agent.stage import BUILD, GPULOAD, ROOT, Stage


@pytest.fixture(scope="session", autouse=True)
def built() -> None:
    """Build libvcuda and the simulated driver if needed."""
    needed = [BUILD / "libvcuda-pages.so", BUILD / "libvcuda.so", BUILD / "vcuda-arbiter", BUILD / "simnode", GPULOAD]
    if not all(path.exists() for path in needed):
        subprocess.run(["make", "-C", ROOT / "libvcuda"], check=True, capture_output=True)


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """Create a run directory on a tmpfs, with a path that is short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="gpucloud-test-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
async def control() -> AsyncIterator[Control]:
    server = Control()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def stage(tmp_path: Path, run_dir: Path, control: Control) -> AsyncIterator[Stage]:
    """Return a node whose agent is not started yet."""
    it = Stage(tmp_path, run_dir, control, agents=forked.server())
    yield it
    it.close()


@pytest.fixture
async def link(stage: Stage) -> Connection:
    """Return the first connection of a started agent."""
    stage.start()
    connection = await stage.control.connection()
    hello = await connection.expect(wire.Hello)
    stage.gpus = [gpu.uuid for gpu in hello.gpus]
    return connection


@pytest.fixture
async def watcher(run_dir: Path) -> AsyncIterator[PluginWatcher]:
    """Return the plugin watcher of a running kubelet."""
    it = PluginWatcher(run_dir / "kubelet")
    it.start()
    yield it
    await it.stop()


@pytest.fixture
async def kubelet(run_dir: Path) -> AsyncIterator[Kubelet]:
    it = Kubelet(run_dir / "kubelet")
    await it.start()
    yield it
    await it.stop()


@pytest.fixture
async def plugin(stage: Stage, kubelet: Kubelet) -> Connection:
    """Return the connection of an agent that has reported its GPUs to the kubelet."""
    stage.start(**kubelet.settings)
    link = await stage.control.connection()
    hello = await link.expect(wire.Hello)
    assert hello.kubernetes_node == "10.0.200.4"
    stage.gpus = [gpu.uuid for gpu in hello.gpus]
    await kubelet.knows_both()
    return link
