"""Claims on a running platform and GPU programs under them, for tests and benchmarks."""

import subprocess
import uuid
from pathlib import Path
from typing import Any

from benchmarks.echo import Echo
from tests.platform import ROOT, Json, Platform, until

GPULOAD = str(ROOT / "libvcuda" / "build" / "gpuload")


class Claims:
    """Claims of one tenant and the programs under them; `end` ends everything."""

    def __init__(self, platform: Platform, directory: Path) -> None:
        self.platform, self.directory = platform, directory
        self.tenant = platform.new_tenant(f"lend-{uuid.uuid4().hex[:8]}", core=10_000)
        self.made: list[str] = []
        self.programs: list[subprocess.Popen[bytes]] = []

    def ask(self, wait: int = 60, **asked: Any) -> Json:
        """Create a claim; wait so long until it is in force."""
        body = {"tenant": self.tenant, "core_limit": 100, "memory_mib": 256, **asked}
        claim: Json = self.platform.granted("POST", f"claims/?wait={wait}", body)
        self.made.append(claim["uid"])
        return claim

    def read(self, uid: str) -> Json:
        """Return the claim as it is now."""
        claim: Json = self.platform.granted("GET", f"claims/{uid}/")
        return claim

    def run(self, uid: str) -> tuple[subprocess.Popen[bytes], Echo]:
        """Start a program with unlimited demand; return it once it uses its GPU, and the claim's usage page."""
        program = self.platform.run(uid, GPULOAD, "--kernel-us", "1000", log=self.directory / uid)
        self.programs.append(program)
        run_dir = Path(self.platform.granted("GET", f"claims/{uid}/env/")["agent_socket"]).parent
        echo = Echo(run_dir, uid)
        until(echo.gpu_time_ns, seconds=30, what="the program to use its GPU")
        return program, echo

    def fill(self, core: int) -> None:
        """Leave no GPU with this much free capacity; the filling claims are fixed for the rebalancer."""
        while self.ask(wait=3, core_request=core, rebalance=False)["state"] == "active":
            pass

    def end(self) -> None:
        """End the programs, and release the claims."""
        for program in self.programs:
            program.kill()
            program.wait()
        for uid in self.made:
            self.platform.granted("DELETE", f"claims/{uid}/?wait=60")
