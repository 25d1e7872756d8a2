"""The stage of a measurement: the GPU (real or simulated), claims with their pages, processes, the arbiter."""

import atexit
import ctypes
import functools
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.shim.nvml import Gpu, Nvml
from benchmarks.shim.pages import Claim, Library
from benchmarks.shim.processes import Process

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "libvcuda" / "build"
SIMULATED_MEMORY = "141GiB"
# Cost of launches, gaps between kernels, timing events and waits on an H200, in nanoseconds.
SIMULATED_COSTS = "launch=3000,gap=950,event=1280,spin=100000"
# Set for our own tenants only; this process' own variables must not reach a bare run.
OURS = ("LD_PRELOAD", "GPUCLOUD_CLAIM_DIR", "CUDA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
TORCH_VERSION = "import torch; print(torch.__version__, torch.cuda.device_count())"


class Stage:
    """Environment of one part. Closing it ends every process and removes every page."""

    def __init__(
        self, *, simulated: bool, seconds: float, quick: bool = False, only: Collection[str] = frozenset()
    ) -> None:
        self.simulated, self.seconds, self.quick, self._only = simulated, seconds, quick, only
        self._directory = Path(tempfile.mkdtemp(prefix="bench-shim-"))
        self._environment = {name: value for name, value in os.environ.items() if name not in OURS}
        # Torch programs of several tenants would otherwise each start a thread per core.
        self._environment["OMP_NUM_THREADS"] = "2"
        if simulated:
            self._simulate()
        self.nvml = Nvml(BUILD / "sim" / "libnvidia-ml.so.1" if simulated else "libnvidia-ml.so.1")
        self.gpus: list[Gpu] = self.nvml.gpus()
        self._library = Library(BUILD)
        self._processes: list[Process] = []
        self._claims: list[Claim] = []
        self.claims_directory = self._directory / "claims"
        self.claims_directory.mkdir()

    def _simulate(self) -> None:
        node = simulated_node()
        self._environment |= {"LD_LIBRARY_PATH": str(BUILD / "sim"), "GPUCLOUD_SIM_NODE": str(node)}
        # The simulated NVML in this process reads it with getenv.
        os.environ["GPUCLOUD_SIM_NODE"] = str(node)

    def close(self) -> None:
        self.clear()
        shutil.rmtree(self._directory, ignore_errors=True)

    def clear(self) -> None:
        """End every process and forget every claim."""
        for process in self._processes:
            if process.alive:
                process.stop(signal.SIGTERM)
        # All of them take their contexts down at the same time.
        for process in self._processes:
            process.terminate()
        for claim in self._claims:
            claim.close()
            shutil.rmtree(claim.directory)
        self._processes, self._claims = [], []

    def is_chosen(self, name: str) -> bool:
        """Return True if this program or case of a part is to be measured: all are unless ``--only`` names some."""
        return not self._only or name in self._only

    def names(self, name: str) -> bool:
        """Return True if ``--only`` names it."""
        return name in self._only

    @property
    def gpu(self) -> Gpu:
        return self.gpus[0]

    def claim(self, percent: int = 100, *, gpus: int = 1, **limits: Any) -> Claim:
        """Create a claim of the first GPUs, with these limits (see :meth:`Claim.limit`)."""
        number = len(list(self.claims_directory.iterdir()))
        claim = Claim(self._library, self.claims_directory / f"claim-{number}")
        self._claims.append(claim)
        for gpu in self.gpus[:gpus]:
            claim.limit(gpu.uuid, percent, **limits)
        return claim

    def environment(self, claim: Claim | None, gpus: int = 1) -> dict[str, str]:
        """Return the environment of a process under this claim; bare without a claim. Both see the same GPUs."""
        visible = ",".join(gpu.uuid for gpu in self.gpus[:gpus])
        bare = {**self._environment, "CUDA_VISIBLE_DEVICES": visible}
        if claim is None:
            return bare
        preload = str(BUILD / "libvcuda.so")
        if self.simulated:
            preload += f" {BUILD / 'sim' / 'libsimkernel.so'}"
        return {**bare, "LD_PRELOAD": preload, "GPUCLOUD_CLAIM_DIR": str(claim.directory)}

    def start(
        self,
        command: Sequence[str | Path],
        claim: Claim | None = None,
        *,
        more: Mapping[str, str] | None = None,
        gpus: int = 1,
    ) -> Process:
        """Start a process under this claim, or bare; it ends with the stage at the latest."""
        log = self._directory / f"process-{len(self._processes)}-{id(command):x}"
        environment = {**self.environment(claim, gpus), **(more or {})}
        process = Process(command, environment, log, ROOT)
        self._processes.append(process)
        return process

    def gpuload(self, claim: Claim | None, *options: str, interval: float = 0.1, **how: Any) -> Process:
        """Start a program with a known load; it prints a row every so many seconds and runs until it is ended."""
        command: list[str | Path] = [BUILD / "gpuload", "--json", "--interval", str(interval), *options]
        return self.start(command, claim, **how)

    def gpumix(self, claim: Claim | None, *options: str, interval: float = 0.01) -> Process:
        """Start a program of several kinds of kernels with waits.

        It prints rows like gpuload, each after a whole step.
        """
        costs = {"GPUCLOUD_SIM_COSTS": SIMULATED_COSTS} if self.simulated else {}
        return self.start([BUILD / "gpumix", "--json", "--interval", str(interval), *options], claim, more=costs)

    def program(self, claim: Claim | None, name: str, *options: str, **how: Any) -> Process:
        """Start a PyTorch program of ``benchmarks.shim.programs``.

        It waits for commands and prints a row every 0.1 s.
        """
        module = f"benchmarks.shim.programs.{name}"
        return self.start([sys.executable, "-m", module, "--interval", "0.1", *options], claim, **how)

    def fill(self, claim: Claim, more: Mapping[str, str], *options: str) -> Process:
        """Start the program that fills its memory; it takes one line, which ends its holding."""
        return self.start([sys.executable, "-m", "benchmarks.shim.programs.fill", *options], claim, more=more)

    def arbiter(self) -> Process | None:
        """Start the arbiter for all claims of the stage; None if it is not built."""
        program = BUILD / "vcuda-arbiter"
        return self.start([program, self.claims_directory]) if program.exists() else None

    def torch(self) -> tuple[str, int] | None:
        """Return PyTorch's version and how many GPUs it sees; None if it is not installed or sees none."""
        command = [sys.executable, "-c", TORCH_VERSION]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=120, check=False)
        version, _, count = done.stdout.strip().partition(" ")
        return (version, int(count)) if done.returncode == 0 and count not in {"", "0"} else None

    def machine(self, torch: str | None) -> dict[str, str]:
        """Return the hardware and software that every figure depends on."""
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line for line in lines if line.startswith("model name")), "")
        return {
            "gpu": f"{len(self.gpus)} × {self.gpu.name}" + (" (simulated)" if self.simulated else ""),
            "driver": f"driver {self.nvml.driver()} (CUDA {self.nvml.cuda()})",
            "cpu": f"{cpu.partition(':')[2].strip() or platform.machine()}, {os.cpu_count()} cores",
            "system": f"Linux {platform.release()}",
            "python": f"Python {platform.python_version()}",
            "torch": f"PyTorch {torch}" if torch else "no PyTorch",
        }


@functools.cache
def simulated_node() -> Path:
    """Create this process' virtual node: the simulated NVML maps one and keeps it."""
    directory = Path(tempfile.mkdtemp(prefix="bench-shim-node-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    command: list[str | Path] = [
        BUILD / "simnode",
        "create",
        directory / "node",
        "--gpus",
        "2",
        "--memory",
        SIMULATED_MEMORY,
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return directory / "node"


def set_timer_slack() -> None:
    """Reduce the timer slack: the kernel may otherwise delay a sample by 50 µs."""
    PR_SET_TIMERSLACK = 29  # noqa: N806 - the kernel's name
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
