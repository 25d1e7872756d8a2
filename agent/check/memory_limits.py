"""Whether the driver itself limits the memory of claims' control groups, beside libvcuda."""

import os
from pathlib import Path

from agent.check.finding import ok, warning
from agent.machine.gpus import Inventory
from agent.machine.memory_limits import FIRST_DRIVER
from agent.wire import Check

NAME = "kernel-memory-limits"


def memory_limits(inventory: Inventory, *, cgroups: bool, root: Path = Path("/sys/fs/cgroup")) -> Check:
    """Tell whether limits also hold programs that do not load libvcuda. `cgroups`: whether claims have groups."""
    if not inventory.limits_memory:
        driver = "no driver" if inventory.problem is not None else f"driver {inventory.driver_version}"
        return ok(NAME, f"not available: {driver}, r{FIRST_DRIVER} or newer needed; libvcuda alone limits memory")
    if inventory.gpus and all(gpu.uuid.startswith("MIG-") for gpu in inventory.gpus):
        return ok(NAME, "not available for MIG instances, which have memory of their own")
    if not cgroups:
        return warning(NAME, "available, but GPUCLOUD_CGROUPS is off", "Remove GPUCLOUD_CGROUPS=off.")
    if os.getuid() != 0:
        return warning(NAME, f"available, but not to uid {os.getuid()}", "Run the agent as root.")
    try:
        controllers = (root / "cgroup.controllers").read_text().split()
        enabled = (root / "cgroup.subtree_control").read_text().split()
    except OSError:
        return warning(
            NAME,
            f"available, but cgroup version 2 is not mounted at {root}",
            "Start the machine with systemd.unified_cgroup_hierarchy=1 on the kernel's command line.",
        )
    if "dmem" not in controllers:
        return ok(NAME, "enforced by the driver, which keeps account by itself: the kernel has no dmem controller")
    if "dmem" not in enabled:
        return warning(
            NAME,
            "available, but the dmem controller is off",
            f"echo +dmem > {root}/cgroup.subtree_control, and the same in each group above the programs' own; "
            "or start the machine with cgroup_disable=dmem: then the driver keeps account by itself.",
        )
    return ok(NAME, "enforced by the driver, by the kernel's dmem controller")
