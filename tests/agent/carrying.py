"""Two nodes on one machine for tests: agents with namespaces of their own, between which programs are carried.

Each finds its own run directory and virtual GPUs under the same paths, as two machines would.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from agent import wire
from tests.agent.control import Connection, Control
from tests.agent.stage import BUILD, ROOT, SECRET, Stage, eventually, tether
from tests.agent.suspensions import FAST

CRIU = (
    os.environ.get("GPUCLOUD_CRIU")
    or shutil.which("criu")
    or next((str(path) for path in (Path("/opt/criu/criu"),) if path.exists()), None)
)
PYTHON = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
# The first process of a node's namespace: it reaps, until the test's process has ended.
HOLDER = "import signal, sys\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nsys.stdin.read()"
# Become the command in a network namespace of its own, with loopback.
OWN_NETWORK = """
import ctypes, fcntl, os, socket, struct, sys
assert ctypes.CDLL(None).unshare(0x40000000) == 0
with socket.socket() as any:
    fcntl.ioctl(any, 0x8914, struct.pack("16sh14x", b"lo", 1))
os.execv(sys.argv[1], sys.argv[1:])
"""
# A hash chain of which each step waits for the GPU; with each number it writes the chain so far. When a file OUT.more
# appears, it starts another program, which has 32 MiB of the GPU.
CHAIN = """
import ctypes, hashlib, os, subprocess, sys, threading, time
out = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
cuda = ctypes.CDLL("libcuda.so.1")
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), int(sys.argv[2]) << 20) == 0
threading.Thread(target=lambda: threading.Event().wait(), daemon=True).start()
chain, step, last, other = b"", 0, time.monotonic(), None
other_code = '''
import ctypes, time
cuda, context, memory = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), 32 << 20) == 0
time.sleep(600)
'''
while True:
    block = ctypes.c_uint64()
    error = cuda.cuMemAlloc_v2(ctypes.byref(block), 1 << 20) or cuda.cuMemsetD8_v2(block, 7, 1 << 20)
    error = error or cuda.cuCtxSynchronize() or cuda.cuMemFree_v2(block)
    if other is None and os.path.exists(sys.argv[1] + ".more"):
        other = subprocess.Popen([sys.executable, "-c", other_code])
    now = time.monotonic()
    if now < last:
        error = "the clock went back"
    last = now
    chain, step = hashlib.sha256(chain + str(step).encode()).digest(), step + 1
    os.write(out, f"{step} {chain.hex()} {error}\\n".encode())
    time.sleep(0.02)
"""


def find_lack() -> str | None:
    """Return why nothing can be carried on this machine; None if it can."""
    if os.getuid() != 0:
        return "needs root, for namespaces"
    if CRIU is None:
        return "needs CRIU 4: install criu (Debian 13), or set GPUCLOUD_CRIU"
    missing = [name for name in ("nsenter", "setpriv", "unshare", "openssl") if shutil.which(name) is None]
    return f"needs {', '.join(missing)}" if missing else None


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _mounts_of(pid: int | str) -> int:
    return Path(f"/proc/{pid}/ns/mnt").stat().st_ino


class Site(Stage):
    """One node in namespaces of its own. `paths`: where both find their own run directory and virtual GPUs."""

    def __init__(
        self,
        root: Path,
        run_dir: Path,
        control: Control | None,
        paths: tuple[Path, Path],
        *,
        gpus: int = 2,
        name: str = "sim-1",
    ) -> None:
        root.mkdir()
        super().__init__(root, run_dir, control, gpus=gpus, name=name)
        self.paths = paths
        # False: on the machine's own GPUs, which both nodes have then.
        self.simulated = True
        command = [str(shutil.which("unshare")), "--pid", "--fork", "--mount-proc", "--kill-child", "--"]
        self.holder = subprocess.Popen([*command, sys.executable, "-c", HOLDER], stdin=subprocess.PIPE)

    async def open(self) -> None:
        """Make the namespaces."""
        self.first = (await eventually(lambda: _children(self.holder.pid)))[0]
        await eventually(lambda: _mounts_of(self.first) != _mounts_of("self"))
        places = [(self.run_dir, self.paths[0])]
        if self.simulated:
            places.append((self.node_file, self.paths[1]))
        for here, there in places:
            mount = [*self.inside(), "mount", "--bind", str(here), str(there)]
            await asyncio.to_thread(subprocess.run, mount, check=True)

    def inside(self) -> list[str]:
        """Return the beginning of a command that runs within the node."""
        return [str(shutil.which("nsenter")), "-t", str(self.first), "-p", "-m", "--"]

    async def begin(self, **more: str) -> Connection:
        """Start the agent; return its connection."""
        self.start_agent(self.control.url, **more)
        connection = await self.control.connection()
        hello = await connection.expect(wire.Hello)
        self.gpus = [gpu.uuid for gpu in hello.gpus]
        return connection

    def start_agent(self, server: str, **more: str) -> None:
        """Start the agent of this server."""
        places = ["--server", server, "--state-dir", str(self.state_dir)]
        variables = FAST | {
            "GPUCLOUD_ENROL_TOKEN": "gpe_once",
            "GPUCLOUD_RUN_DIR": str(self.paths[0]),
            "GPUCLOUD_SIM_NODE": str(self.paths[1]) if self.simulated else "",
            "GPUCLOUD_LIBRARY": str(BUILD / "libvcuda.so"),
            "GPUCLOUD_BACKOFF_CAP_SECONDS": "0.2",
            "GPUCLOUD_RELEASE_GRACE_SECONDS": "1",
            # Both nodes' claims would have one control group.
            "GPUCLOUD_CGROUPS": "off",
            "GPUCLOUD_CARRY": "127.0.0.1:0",
            "GPUCLOUD_CARRY_UIDS": "0,1000-60000",
            "GPUCLOUD_CRIU": str(CRIU),
        }
        with self.log.open("ab") as log:
            self.agent = subprocess.Popen(
                tether(*self.inside(), sys.executable, "-m", "agent", "run", *places),
                env=self.environment(**(variables | more)), stderr=log, cwd=ROOT,
            )  # fmt: skip

    async def kill(self) -> None:
        """Kill the agent by SIGKILL; its node's programs live on."""
        assert self.agent is not None
        for pid in _children(self.agent.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.agent.kill()
        await self.ended()

    async def launch(self, claim_uid: str, code: str, *arguments: str, user: int = 0, secret: str = SECRET) -> None:
        """Start a Python program that can be carried, as this user."""
        # The tests' own interpreter may be in a home directory.
        await self.launch_command(claim_uid, [PYTHON, "-c", code, *arguments], user=user, secret=secret)

    async def launch_command(
        self, claim_uid: str, words: list[str], *, user: int = 0, output: str = "/dev/null", secret: str = SECRET
    ) -> None:
        """Start a program that can be carried, as this user, with its output in this file."""
        variables = {"GPUCLOUD_CLAIM_SECRET": secret, "GPUCLOUD_AGENT_SOCKET": str(self.paths[0] / "agent.sock")}
        agent = (sys.executable, "-m", "agent")
        environment = self.environment(**variables)
        if user:
            give = [*self.inside(), *agent, "give", "--user", str(user), claim_uid]
            await asyncio.to_thread(subprocess.run, give, env=environment, cwd=ROOT, check=True)
        command = ["setpriv", "--reuid", str(user), "--regid", str(user), "--clear-groups", "--", *words]
        # NVIDIA's driver binds a socket whose name both copies have: two machines have two namespaces of them.
        net = [] if self.simulated else [sys.executable, "-c", OWN_NETWORK]
        program = subprocess.Popen(  # noqa: ASYNC220 - it starts at once
            tether(*self.inside(), *net, *agent, "exec", "--movable", output, claim_uid, "--", *command),
            env=environment,
            stdin=subprocess.DEVNULL,
            cwd=ROOT,
        )
        self.programs.append(program)

    def close(self) -> None:
        """End everything in the namespaces."""
        assert self.holder.stdin is not None
        self.holder.stdin.close()
        self.holder.kill()
        self.holder.wait()
        super().close()
