"""Checks of what the kernel lets the agent see and do: cgroups, other processes, user."""

import os
from pathlib import Path

from agent.check.finding import failed, ok, warning
from agent.host import processes
from agent.wire import Check


def cgroup(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> Check:
    """Check which cgroup version identifies processes, and whether the agent's own group is delegated to it."""
    if (root / "cgroup.controllers").exists():
        mine = next((line[3:] for line in own.read_text().splitlines() if line.startswith("0::")), "/")
        delegated = os.access(root / mine.lstrip("/") / "cgroup.procs", os.W_OK)
        return ok("cgroup", f"version 2, {'delegated to the agent' if delegated else 'not delegated to the agent'}")
    if any(root.glob("*/cgroup.procs")):
        both = " and 2" if (root / "unified/cgroup.controllers").exists() else ""
        return ok("cgroup", f"version 1{both}, not delegated to the agent")
    return warning(
        "cgroup",
        f"no cgroups at {root}",
        "Without cgroups, processes in containers cannot be identified: mount /sys/fs/cgroup, read-only is enough.",
    )


def visibility(*, pids_are_ours: bool) -> Check:
    """Check that the agent sees the processes that NVML lists."""
    if not processes.find(1):
        return failed(
            "processes",
            "/proc hides the processes of other users (hidepid)",
            "Run the agent as root, or mount /proc with gid= of a group that it is in.",
        )
    if pids_are_ours or processes.sees_all():
        return ok("processes", "every process of this machine can be seen")
    return warning(
        "processes",
        "the agent sees its own pid namespace only",
        "Other programs cannot be identified or ended: start the agent's container with --pid=host.",
    )


def user() -> Check:
    """Check that tenants run as other users than the agent."""
    if os.getuid() == 0:
        return ok("user", "root")
    return warning(
        "user",
        f"uid {os.getuid()}",
        "Programs of the same user can write the pages: limits then prevent mistakes only. Run it as root.",
    )
