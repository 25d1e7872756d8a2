"""MPS control daemons of the agent's own code, in a thread of their own, and the clients' variables."""

import asyncio
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path

from agent.host.mps import PROGRAM, Fall, MpsDaemon
from agent.host.mps_places import TrustGroup, places
from benchmarks.shim.stage import BUILD, Stage

PASSED = ("PATH", "LD_LIBRARY_PATH", "GPUCLOUD_SIM_NODE")


class Groups:
    """The daemons of several tenants on the first GPU. `falls`: what the agent's code saw end, and when."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.directory = Path(tempfile.mkdtemp(prefix="bench-mps-", dir="/dev/shm"))
        # As the agent's run directory: everyone may pass through.
        self.directory.chmod(0o755)
        self.falls: list[tuple[float, Fall]] = []
        self._running: dict[str, MpsDaemon] = {}
        self._tasks: list[Future[None]] = []
        beside = str(BUILD / "sim" / PROGRAM) if stage.simulated else None
        self.program = beside or shutil.which(PROGRAM) or ""

    def environment(self) -> dict[str, str]:
        """Return the variables that a daemon gets from the agent."""
        bare = self._stage.environment(None)
        return {name: bare[name] for name in PASSED if name in bare}

    def start(self, tenant: str) -> MpsDaemon:
        """Start the tenant's daemon; return when clients can connect. Raises RuntimeError."""
        group = TrustGroup(self._stage.gpu.uuid, tenant)
        daemon = MpsDaemon(
            group,
            places(self.directory / "mps", group),
            program=self.program,
            environment=self.environment(),
            report=lambda fall: self.falls.append((time.monotonic(), fall)),
        )
        self._tasks.append(asyncio.run_coroutine_threadsafe(daemon.run(), self._loop))
        self._running[tenant] = daemon
        self.wait(daemon)
        return daemon

    @staticmethod
    def wait(daemon: MpsDaemon, seconds: float = 15.0) -> float:
        """Wait until clients can connect; return how long that took. Raises RuntimeError."""
        begun = time.monotonic()
        while not daemon.is_ready:
            if time.monotonic() - begun > seconds:
                raise RuntimeError(f"The MPS control daemon of {daemon.group.tenant} does not come: {daemon.problem}")
            time.sleep(0.005)
        return time.monotonic() - begun

    def variables(self, tenant: str, percent: int) -> Mapping[str, str]:
        """Return what makes a program a client of the tenant's server, with so much of the GPU."""
        daemon = self._running[tenant]
        return {
            "CUDA_MPS_PIPE_DIRECTORY": str(daemon.places.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(daemon.places.log),
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percent),
        }

    def logs(self) -> dict[str, str]:
        """Return the ends of the daemons' logs, by file."""
        found = {}
        for daemon in self._running.values():
            for path in daemon.places.log.glob("*"):
                found[f"{daemon.group.tenant}/{path.name}"] = path.read_text(errors="replace")[-6000:]
        return found

    def close(self) -> None:
        """End all daemons."""
        for task in self._tasks:
            task.cancel()
        for daemon in self._running.values():
            asyncio.run_coroutine_threadsafe(daemon.end(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        shutil.rmtree(self.directory, ignore_errors=True)
