"""The demo's nodes.

``default`` has one node, left empty for whoever tries the platform: this machine's own GPUs if NVML finds any, else the
simulated ``sim-1``. ``sim-2`` in the pool ``shared`` is always simulated and carries the seeded claims. With
``NODES=2`` the pool ``default`` has a second, simulated node: claims can move to it if the first one is simulated, too.
"""

import re
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "libvcuda" / "build"
SIMULATED_GPUS = "4"
SIMULATED_MEMORY = "24GiB"

# Run in a separate process: a driver that hangs or crashes affects only that process.
COUNT_GPUS = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetCount())"
COUNT_SECONDS = 20.0


@dataclass(frozen=True)
class Node:
    """A machine with an agent."""

    name: str
    pool: str
    simulated: bool


def nodes(count: int = 1) -> list[Node]:
    """Return the nodes, those of ``default`` first; it has so many, and more than one only on request."""
    first = Node(real_name(), "default", simulated=False) if real_gpus() else Node("sim-1", "default", simulated=True)
    more = [Node(f"sim-{number + 1}", "default", simulated=True) for number in range(2, count + 1)]
    return [first, *more, Node("sim-2", "shared", simulated=True)]


def real_gpus() -> int:
    """Return the number of GPUs that NVML finds on this machine."""
    try:
        asked = subprocess.run(
            [sys.executable, "-c", COUNT_GPUS], capture_output=True, text=True, check=True, timeout=COUNT_SECONDS
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return 0
    return int(asked.stdout)


def real_name() -> str:
    """Return the machine's short name if it is a valid node name, else ``gpu-1``."""
    name = socket.gethostname().split(".")[0].lower()
    return name if re.fullmatch(r"[a-z][a-z0-9-]{0,61}[a-z0-9]", name) and not name.startswith("sim-") else "gpu-1"


def virtual_node(directory: Path, name: str) -> Path:
    """Return the file that the simulated driver's processes share.

    It outlives upgrades: one of another version is made anew, with the same GPUs, whose UUIDs follow from the name.
    """
    path = directory / "node.sim"
    create = [str(BUILD / "simnode"), "create", str(path), "--keep", "--name", name]
    subprocess.run(
        [*create, "--gpus", SIMULATED_GPUS, "--memory", SIMULATED_MEMORY],
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    )
    return path
