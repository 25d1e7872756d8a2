"""Check of the kernel's own memory limits for control groups."""

import os
from pathlib import Path

from agent.check.finding import ok, warning
from agent.host.gpus import Inventory
from agent.host.memory_limits import FIRST_DRIVER
from agent.wire import Check

NAME = "kernel-memory-limits"


def memory_limits(
    inventory: Inventory, *, has_groups: bool = True, sees_all: bool = True, root: Path = Path("/sys/fs/cgroup")
) -> Check:
    """Check whether limits also apply to programs that do not load libvcuda.

    `has_groups`: True if claims get control groups; `sees_all`: True if the agent can name those of containers.
    """
    if not inventory.limits_memory:
        driver = "no driver" if inventory.problem is not None else f"driver {inventory.driver_version}"
        return ok(NAME, f"not available: {driver}, r{FIRST_DRIVER} or newer needed; libvcuda alone limits memory")
    if inventory.gpus and all(gpu.uuid.startswith("MIG-") for gpu in inventory.gpus):
        return ok(NAME, "not available for MIG instances, which have memory of their own")
    return _find_obstacle(has_groups=has_groups, sees_all=sees_all) or _check_kernel(root)


def _find_obstacle(*, has_groups: bool, sees_all: bool) -> Check | None:
    """Return the obstacle to setting the driver's limits on the agent's side; None if there is none."""
    if not has_groups:
        return warning(NAME, "available, but GPUCLOUD_CGROUPS is off", "Remove GPUCLOUD_CGROUPS=off.")
    if os.getuid() != 0:
        return warning(NAME, f"available, but not to uid {os.getuid()}", "Run the agent as root.")
    if not sees_all:
        return warning(
            NAME,
            "available, but the agent's container has a cgroup namespace of its own: it cannot name other groups",
            "Run the agent on the machine itself, or its container in the machine's cgroup namespace.",
        )
    return None


def _check_kernel(root: Path) -> Check:
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
