"""The agent of a real node: device plugin and DRA driver of its kubelet, with simulated GPUs."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

import httpx

from tests.agent.stage import BUILD, tether
from tests.kubelet.node import RealNode
from tests.platform import ROOT
from tests.ports import free_port

GPUS, MEMORY_GIB = 4, 24
# Options of simnode.
SHAPE = ("--gpus", str(GPUS), "--memory", f"{MEMORY_GIB}GiB")


class Agent:
    """The agent's process on this node, started and killed at will."""

    def __init__(
        self, directory: Path, node: RealNode, *, server: str, token: str, shape: tuple[str, ...] = SHAPE
    ) -> None:
        directory.mkdir(parents=True)
        self._shape = shape
        self._directory, self._node, self._server, self._token = directory, node, server, token
        self.metrics_port = free_port()
        self.gpus_file = directory / "gpus"
        # Pages in memory, as in /run.
        self.run_directory = Path(tempfile.mkdtemp(prefix="gpucloud-test-", dir="/dev/shm"))
        self._process: subprocess.Popen[bytes] | None = None
        # A container's programs of any user may read the library and the pages, as below /run and /usr.
        self.run_directory.chmod(0o755)

    def __enter__(self) -> Self:
        self._simnode("create", str(self.gpus_file), "--name", self._node.name, *self._shape)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.kill(signal.SIGTERM)
        shutil.rmtree(self.run_directory, ignore_errors=True)

    def start(self) -> None:
        """Start it, again after `kill` with the same state."""
        variables = {
            "GPUCLOUD_RUN_DIR": str(self.run_directory),
            "GPUCLOUD_CDI_DIR": str(self._node.cdi_directory),
            "GPUCLOUD_KUBELET_DIR": str(self._node.plugins_directory),
            "GPUCLOUD_DRA": "on",
            "GPUCLOUD_KUBERNETES_NODE": self._node.name,
            "GPUCLOUD_METRICS": f"127.0.0.1:{self.metrics_port}",
            "GPUCLOUD_SIM_NODE": str(self.gpus_file),
            "GPUCLOUD_LIBRARY": str(BUILD / "libvcuda.so"),
            "GPUCLOUD_ENROL_TOKEN": self._token,
            "GPUCLOUD_HEALTH_HOLD_SECONDS": "2",
            "GPUCLOUD_BACKOFF_CAP_SECONDS": "1",
            "PYTHONPATH": str(ROOT),
        }
        mine = {name: value for name, value in os.environ.items() if not name.startswith(("GPUCLOUD_", "LD_"))}
        places = ["--server", self._server, "--state-dir", str(self._directory / "state")]
        with (self._directory / "agent.log").open("ab") as log:
            self._process = subprocess.Popen(
                tether(sys.executable, "-m", "agent", "run", *places),
                env=mine | variables, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                # As a service or a pod, it shares the processors as a group of its own (autogroup), not with the tests.
                start_new_session=True,
            )  # fmt: skip

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Kill it; what it maintains stays as it is."""
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(30)
        self._process = None

    def fault(self, gpu: int, *faults: str) -> None:
        """Inject a fault of a simulated GPU: `lost=1`; `lost=0` ends it."""
        self._simnode("fault", str(self.gpus_file), str(gpu), *faults)

    def prepare_seconds(self, part: str, percent: int) -> float:
        """Return a bound of the time that this percent of the prepares took, by the agent's metric."""
        text = httpx.get(f"http://127.0.0.1:{self.metrics_port}/metrics").text
        name = "gpucloud_agent_dra_prepare_seconds_bucket"
        found = re.findall(rf'^{name}{{le="([^"]+)",part="{part}"}} (\S+)$', text, re.MULTILINE)
        counts = {float(bound): float(count) for bound, count in found}
        return min(bound for bound, count in counts.items() if count >= max(counts.values()) * percent / 100)

    def log_tail(self) -> str:
        return (self._directory / "agent.log").read_text(errors="replace")[-4000:]

    def _simnode(self, *arguments: str) -> None:
        subprocess.run([BUILD / "simnode", *arguments], check=True, capture_output=True)
