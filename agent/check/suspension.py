"""Check of whether claims can be suspended on this machine, and into how much host memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

from agent.check.finding import ok, warning
from agent.host.gpus import Inventory
from agent.settings import Settings, available_mib
from agent.suspend.calls import FOREIGN, HELPER
from agent.wire import Check

NAME = "suspend"
# Loading the driver's library; a driver that hangs is reported, too.
TRIAL_SECONDS = 10.0
# Drivers that have the calls, by library and version. An agent is asked at each connection, and the answer is another
# program's start.
_able: set[tuple[Path | None, str]] = set()


def suspension(settings: Settings, inventory: Inventory) -> Check:
    """Check that the driver can suspend processes, that their threads stand still, and that there is host memory."""
    if inventory.problem is not None:
        return ok(NAME, "not available: no driver")
    simulated = settings.library.simulated_driver
    driver = simulated, str(inventory.driver_version)
    if driver not in _able:
        if (words := find_lack(simulated)) is not None:
            return ok(NAME, f"not available: driver {inventory.driver_version}, 570 or newer needed ({words})")
        _able.add(driver)
    budget, available = settings.host_memory_bytes >> 20, available_mib()
    # What simulated GPUs have in memory takes next to no memory of the machine.
    if budget > available and simulated is None:
        return warning(
            NAME,
            f"suspended claims may take {budget} MiB of host memory, and only {available} MiB are available",
            "Lower GPUCLOUD_SUSPEND_MEMORY_MIB: a suspension is refused when there is too little memory.",
        )
    if not settings.cgroups or os.getuid() != 0:
        return warning(
            NAME,
            "claims can be suspended, but their threads that do not use the GPU run on meanwhile",
            "Run the agent as root, without GPUCLOUD_CGROUPS=off: then their control groups are frozen.",
        )
    seconds = f"{settings.suspend_seconds:g} s, and more by its size"
    return ok(NAME, f"into {budget} of {available} available MiB of host memory; a driver call may take {seconds}")


def find_lack(driver: Path | None) -> str | None:
    """Return why the driver has no calls for it, asked by the helper process itself; None if it has them."""
    library = str(driver / "libcuda.so.1" if driver else "libcuda.so.1")
    order = {"action": "probe", "agent": os.getpid(), "library": library}
    environment = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(HELPER)],
            input=json.dumps(order) + "\n", capture_output=True, text=True, timeout=TRIAL_SECONDS, env=environment,
            check=False,
        )  # fmt: skip
        answer = json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError):
        return "the helper process did not answer"
    except subprocess.TimeoutExpired:
        return f"the driver has not answered within {TRIAL_SECONDS:g} s"
    return None if answer.get("result") == "able" else str(answer.get("reason"))
