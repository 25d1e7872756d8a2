"""Surroundings of the agent for tests: its process, a virtual node, claims, and programs under them."""

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent import wire
from agent.claims.abi import PagesLibrary
from agent.claims.pages import LimitSlot, LimitsPage
from agent.claims.usage import Totals, UsagePage
from agent.host import cgroups, processes
from agent.host.mps import find_left
from tests.agent.control import PATIENCE_SECONDS, Control
from tests.agent.forked import Forked, ForkServer

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "libvcuda" / "build"
GPULOAD = BUILD / "gpuload"
GIB = 1 << 30
SECRET = "the secret of every claim in these tests"
TETHER = ROOT / "agent" / "host" / "parent_death.py"


async def eventually(holds: Callable[[], Any], *, seconds: float = PATIENCE_SECONDS) -> Any:
    """Return the call's result as soon as it is true."""
    end = time.monotonic() + seconds
    while not (result := holds()):
        assert time.monotonic() < end, f"not within {seconds} s"
        await asyncio.sleep(0.02)
    return result


def tether(*command: str) -> list[str]:
    """Return the command, ending with this process: a failed test must not leave an agent or a program behind.

    Another program does it: a `preexec_fn` would run after a fork of this process with all its threads.
    """
    return [sys.executable, "-I", "-S", str(TETHER), str(os.getpid()), *command]


def remove_at_once(directory: Path) -> None:
    """Remove a claim's directory in one step: the agent makes a half removed one whole again."""
    aside = directory.parent.with_name(f"removed-{directory.name}")
    directory.rename(aside)
    shutil.rmtree(aside)


class Stage:
    """One node: its virtual GPUs, its agent (started and stopped at will), its directories."""

    def __init__(
        self,
        root: Path,
        run_dir: Path,
        control: Control | None,
        *,
        gpus: int = 4,
        agents: ForkServer | None = None,
        name: str = "sim-1",
        shape: tuple[str, ...] = ("--memory", "24GiB"),
    ) -> None:
        """Create the node; its name makes its GPUs' uuids. `agents`: forks them; else each is a program of its own.

        `shape`: what its GPUs are like, as options of simnode.
        """
        self._control, self._agents = control, agents
        self.state_dir = root / "state"
        self.run_dir = run_dir
        self.node_file = root / "node"
        self.log = root / "agent.log"
        subprocess.run(
            [BUILD / "simnode", "create", self.node_file, "--name", name, "--gpus", str(gpus), *shape],
            check=True,
            capture_output=True,
        )
        self.agent: subprocess.Popen[bytes] | Forked | None = None
        self.programs: list[subprocess.Popen[bytes]] = []
        self.library = PagesLibrary(BUILD / "libvcuda-pages.so")
        self.gpus: list[str] = []

    @property
    def control(self) -> Control:
        """The server under the test's control."""
        assert self._control is not None, "its agent is another server's"
        return self._control

    def environment(self, **more: str) -> dict[str, str]:
        mine = {name: value for name, value in os.environ.items() if not name.startswith(("GPUCLOUD_", "LD_"))}
        return mine | {"GPUCLOUD_RUN_DIR": str(self.run_dir), "PYTHONPATH": str(ROOT)} | more

    def start(
        self,
        *,
        code: str | None = None,
        arguments: tuple[str, ...] = (),
        server: str | None = None,
        state_dir: Path | None = None,
        **more: str,
    ) -> subprocess.Popen[bytes] | Forked:
        """Start the agent; its connection appears in the server's queue.

        `code` is run in the place of its own first line, with these arguments before the agent's.
        """
        variables = {
            "GPUCLOUD_ENROL_TOKEN": "gpe_once",
            "GPUCLOUD_SIM_NODE": str(self.node_file),
            "GPUCLOUD_LIBRARY": str(BUILD / "libvcuda.so"),
            "GPUCLOUD_BACKOFF_CAP_SECONDS": "0.2",
            "GPUCLOUD_RELEASE_GRACE_SECONDS": "1",
            "GPUCLOUD_DRIFT_SECONDS": "0.5",
        }
        run = ["run", "--server", server or self.control.url, "--state-dir", str(state_dir or self.state_dir)]
        environment = self.environment(**(variables | more))
        with self.log.open("ab") as log:
            if self._agents and code is None:
                self.agent = self._agents.start(run, environment=environment, stderr=log.fileno())
            else:
                first = ["-m", "agent"] if code is None else ["-c", code, *arguments]
                command = tether(sys.executable, *first, *run)
                self.agent = subprocess.Popen(command, env=environment, stderr=log, cwd=ROOT)
        return self.agent

    def fault(self, gpu: int, *faults: str) -> None:
        """Inject a fault of a virtual GPU: `xid=79`, `lost=1`; see `simnode --help`."""
        subprocess.run([BUILD / "simnode", "fault", self.node_file, str(gpu), *faults], check=True, capture_output=True)

    def change_driver(self, version: str) -> None:
        """Replace the driver, as an upgrade does."""
        subprocess.run([BUILD / "simnode", "driver", self.node_file, version], check=True, capture_output=True)

    def log_text(self) -> str:
        return self.log.read_text()

    async def ended(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Return the agent's exit code, once it has ended."""
        agent = self.agent
        assert agent is not None
        await eventually(lambda: agent.poll() is not None, seconds=seconds)
        return agent.wait()

    async def kill(self) -> None:
        """Kill the agent by SIGKILL, as the kernel does when memory runs out."""
        assert self.agent is not None
        self.agent.kill()
        await self.ended()

    def assignment(self, gpu: int = 0, **more: Any) -> wire.Assignment:
        """Return a new claim's share of one GPU: half of it, 4 GiB."""
        facts: dict[str, Any] = {
            "uid": str(uuid.uuid4()),
            "claim_uid": str(uuid.uuid4()),
            "tenant": "vision",
            "gpu_uuid": self.gpus[gpu],
            "generation": 1,
            "core_request": 50,
            "core_limit": 50,
            "memory_bytes": 4 * GIB,
            "secret_digest": hashlib.sha256(SECRET.encode()).hexdigest(),
        }
        return wire.Assignment(**(facts | more))

    def claim_dir(self, assignment: wire.Assignment) -> Path:
        return self.run_dir / "claims" / assignment.claim_uid

    def slot(self, assignment: wire.Assignment) -> LimitSlot | None:
        """Return the assignment's slot of the limits page."""
        if not (self.claim_dir(assignment) / "limits").exists():
            return None
        page = LimitsPage(self.library, self.claim_dir(assignment), assignment.claim_uid)
        try:
            return next((slot for slot in page.slots() if slot.assignment_uid == assignment.uid), None)
        finally:
            page.unmap()

    def totals(self, assignment: wire.Assignment, index: int = 0) -> Totals:
        """Return the usage page's totals of the claim's GPU in this slot."""
        page = UsagePage(self.library, self.claim_dir(assignment))
        try:
            assert page.read()
            return page.totals(index)
        finally:
            page.close()

    def exec(
        self, claim_uid: str, *command: str, secret: str = SECRET, options: tuple[str, ...] = (), **more: str
    ) -> Any:
        """Run `agent exec` as a tenant does; return a Popen with its pipes."""
        variables = {"GPUCLOUD_CLAIM_SECRET": secret, "GPUCLOUD_AGENT_SOCKET": str(self.run_dir / "agent.sock")}
        program = subprocess.Popen(
            tether(sys.executable, "-m", "agent", "exec", *options, claim_uid, "--", *command),
            env=self.environment(**(variables | more)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
        )
        self.programs.append(program)
        return program

    async def executed(self, claim_uid: str, *command: str, **more: Any) -> tuple[int, str, str]:
        """Return exit code, output and error output of `agent exec`."""
        program = self.exec(claim_uid, *command, **more)
        out, error = await asyncio.to_thread(program.communicate, timeout=30)
        return program.returncode, out.decode(), error.decode()

    def library_without_shim(self) -> Path:
        """Return the path of libvcuda.so in a directory that has only the pages library."""
        directory = self.state_dir.parent / "library"
        directory.mkdir()
        (directory / "libvcuda-pages.so").symlink_to(BUILD / "libvcuda-pages.so")
        return directory / "libvcuda.so"

    async def ask(self, request: bytes) -> dict[str, Any]:
        """Send one raw request to agent.sock."""
        reader, writer = await asyncio.open_unix_connection(self.run_dir / "agent.sock")
        try:
            writer.write(request)
            async with asyncio.timeout(10):
                answer: dict[str, Any] = json.loads(await reader.readline())
                return answer
        finally:
            writer.close()

    def status(self) -> dict[str, Any]:
        """Return `agent status --json`."""
        told = subprocess.run(
            [sys.executable, "-m", "agent", "status", "--json"],
            env=self.environment(),
            cwd=ROOT,
            check=True,
            capture_output=True,
            timeout=20,
        )
        status: dict[str, Any] = json.loads(told.stdout)
        return status

    def close(self) -> None:
        for process in [*self.programs, *([self.agent] if self.agent else [])]:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        for pipe_directory in (self.run_dir / "mps").glob("*/pipe"):
            # MPS control daemons outlive their agent.
            for daemon in find_left(pipe_directory):
                processes.send(daemon, signal.SIGKILL)
        self._remove_groups()

    def _remove_groups(self) -> None:
        """Remove control groups of a killed agent; the tests' own process may be in one."""
        hierarchy = cgroups.find()
        claims = self.run_dir / "claims"
        if hierarchy is None or not claims.is_dir():
            return
        mine = {directory.name for directory in claims.iterdir()}
        groups = cgroups.find_claim_groups(hierarchy)
        for path in (path for uid, paths in groups.items() if uid in mine for path in paths):
            for pid in cgroups.Group(path).pids():
                with contextlib.suppress(OSError):
                    (path.parent / "cgroup.procs").write_text(str(pid))
            cgroups.Group(path).remove()
