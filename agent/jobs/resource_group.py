"""The control group of one run, which bounds its memory, processes and processor time. Standard library only.

Where systemd runs, the run is a unit of its own and systemd makes its group (`agent.jobs.unit`); elsewhere, the keeper
makes one below its own, or in version 2 beside it. Its name does not begin like that of a claim's group: those
are made below it (`agent.host.cgroups`).
"""

import contextlib
import os
from pathlib import Path

from agent.host import mounts, processes

CONTROLLERS = ("memory", "pids", "cpu")
# The second version's weight of an ordinary group, and the first version's.
WEIGHT, SHARES = 100, 1024


def can_bound_memory() -> bool:
    """Return whether this process may make groups that bound memory."""
    group = find_own().get("memory")
    place = _find_place(group, "memory") if group is not None else None
    return place is not None and os.access(place, os.W_OK)


def is_bounded(memory_bytes: int) -> bool:
    """Return whether this process's group takes at most so much memory, as one of systemd's does."""
    group = find_own().get("memory")
    if group is None:
        return False
    for file in ("memory.max", "memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            return int((group / file).read_text()) <= memory_bytes
    return False


def enter(name: str, *, memory_bytes: int, most_processes: int, cpu_weight: int) -> None:
    """Put this process into a group of this name with those of these bounds that can be set here."""
    limits = {
        "memory": {
            "memory.max": memory_bytes,
            "memory.swap.max": 0,
            "memory.limit_in_bytes": memory_bytes,
            # With the swap; not every kernel counts it.
            "memory.memsw.limit_in_bytes": memory_bytes,
        },
        "pids": {"pids.max": most_processes},
        "cpu": {"cpu.weight": cpu_weight, "cpu.shares": max(2, cpu_weight * SHARES // WEIGHT)},
    }
    for controller, own in find_own().items():
        with contextlib.suppress(OSError):
            _offer(own)
            above = _find_place(own, controller)
            if above is None:
                continue
            group = above / name
            group.mkdir(exist_ok=True)
            for file, bound in limits[controller].items():
                if (group / file).exists():
                    (group / file).write_text(str(bound))
            (group / "cgroup.procs").write_text(str(os.getpid()))


def _offer(group: Path) -> None:
    """Let groups below this one have controllers (version 2)."""
    control = group / "cgroup.subtree_control"
    if control.exists():
        has = set((group / "cgroup.controllers").read_text().split()).intersection(CONTROLLERS)
        with contextlib.suppress(OSError):
            # Refused while processes are in the group itself, unless it is the root of all.
            control.write_text(" ".join(f"+{name}" for name in sorted(has)))


def _find_place(own: Path, controller: str) -> Path | None:
    """Return the group below which this controller bounds a new one; None if there is none.

    It is this process's own, or in version 2, where a group has processes or controllers, the one above it.
    """
    if not (own / "cgroup.subtree_control").exists():
        return own
    for place in (own, own.parent):
        with contextlib.suppress(OSError):
            if controller in (place / "cgroup.subtree_control").read_text().split():
                return place
    return None


def leave(name: str) -> None:
    """Leave the group of this name, and remove it if it is empty."""
    for group in find_own().values():
        if group.name == name:
            with contextlib.suppress(OSError):
                (group.parent / "cgroup.procs").write_text(str(os.getpid()))
                group.rmdir()


def remove(name: str) -> None:
    """Remove a group of this name that a keeper left below or beside this process's own."""
    for place in {place for own in find_own().values() for place in (own, own.parent)}:
        # A claim's group in it is made anew by who needs it.
        for group in (*(place / name).glob("*/"), place / name):
            with contextlib.suppress(OSError):
                group.rmdir()


def read_peak(group: Path) -> int:
    """Return the most memory that a group has had, in bytes; 0 if it cannot be read."""
    for file in ("memory.peak", "memory.max_usage_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            return int((group / file).read_text())
    return 0


def count_oom_kills(group: Path | None) -> int:
    """Return how many processes of a group the kernel has ended because its memory was at the bound."""
    if group is None:
        return 0
    for file in ("memory.events", "memory.oom_control"):
        with contextlib.suppress(OSError, ValueError):
            rows = dict(line.split() for line in (group / file).read_text().splitlines())
            return int(rows.get("oom_kill", 0))
    return 0


def find_own(pid: int | str = "self") -> dict[str, Path]:
    """Return this, or another, process's group for each controller that can be reached here."""
    found = {}
    with contextlib.suppress(OSError):
        groups = [line.split(":", 2)[1:] for line in processes.lines_of(Path(f"/proc/{pid}/cgroup"))]
        first = {controller: path for named, path in groups for controller in named.split(",") if controller}
        second = next((path for named, path in groups if not named), None)
        for mount in mounts.read():
            for controller in CONTROLLERS:
                path = first.get(controller) if controller in mount.options else None
                if mount.kind == "cgroup2" and controller not in first:
                    path = second
                if path is not None and mount.kind in ("cgroup", "cgroup2"):
                    below = os.path.relpath(path, mount.root)
                    if not below.startswith(".."):
                        found[controller] = Path(mount.point) / below
    return found
