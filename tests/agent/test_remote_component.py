"""The real remoting component under a claim of the simulated driver.

GPUCLOUD_TEST_LUPINE names the directory of its build; without one, this is skipped.
The program is not one of ours: Python's ctypes on the component's own libcuda.so.1.
"""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent import wire
from gpucloud_cli import remote_client
from tests.agent import forked
from tests.agent.control import Control
from tests.agent.jobs import USERS
from tests.agent.remoting import Remote, hello_with_endpoint
from tests.agent.stage import Stage

COMPONENT = Path(os.environ.get("GPUCLOUD_TEST_LUPINE") or shutil.which("lupine_driver_server") or "/nonexistent")
DIRECTORY = COMPONENT if COMPONENT.is_dir() else COMPONENT.parent
pytestmark = pytest.mark.skipif(
    not (DIRECTORY / "lupine_driver_server").exists(), reason="GPUCLOUD_TEST_LUPINE names no build of the component"
)
MIB = 1 << 20
PROGRAM = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
device, context, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
free, total, block = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_uint64()
print("init", cuda.cuInit(0))
print("count", cuda.cuDeviceGetCount(ctypes.byref(count)), count.value)
cuda.cuDeviceGet(ctypes.byref(device), 0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
cuda.cuCtxSetCurrent(context)
cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
print("total", total.value >> 20)
taken = 0
while cuda.cuMemAlloc_v2(ctypes.byref(block), 1 << 20) == 0:
    taken += 1
print("taken", taken, free.value >> 20)
"""


@pytest.fixture
async def remote(run_dir: Path, control: Control) -> AsyncIterator[Remote]:
    """Return a node that serves the real component, with one claim in force."""
    root = run_dir / "machine"
    root.mkdir()
    # Where the tenant's user may read it.
    server = root / "lupine_driver_server"
    shutil.copy(DIRECTORY / "lupine_driver_server", server)
    stage = Stage(root, run_dir, control, agents=forked.server())
    stage.node_file.chmod(0o666)
    stage.start(GPUCLOUD_REMOTE="127.0.0.1:0", GPUCLOUD_REMOTE_USERS=USERS, GPUCLOUD_REMOTE_SERVER=str(server))
    hello, link = await hello_with_endpoint(control)
    stage.gpus = [gpu.uuid for gpu in hello.gpus]
    assert isinstance(hello.remote, wire.RemoteEndpoint)
    it = Remote(stage, link, hello.remote)
    await it.send(it.claim)
    await link.state(it.claim.uid, "in_force")
    yield it
    it.close()
    stage.close()


async def test_a_foreign_program_has_the_claims_memory_and_no_more(remote: Remote) -> None:
    share = await remote.open()
    environment = remote_client.environment_of("lupine", DIRECTORY, share.port, remote.claim.claim_uid, os.environ)
    ended = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    told = dict(line.split(" ", 1) for line in ended.stdout.splitlines())
    assert ended.returncode == 0, (ended, remote.said, remote.stage.log_text())
    assert told["init"] == "0", (ended, remote.said, remote.stage.log_text())
    assert told["count"] == "0 1"
    assert told["total"] == str(remote.claim.memory_bytes // MIB)
    taken, free = map(int, told["taken"].split())
    assert free - 4 <= taken <= free
