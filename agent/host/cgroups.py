"""Control groups of both versions: a claim's programs have one of their own, which none of their children can leave.

It is made *below* the group from which a program comes, so that the limits that the machine's owner set on that group
(memory, CPU, a session's end, a batch system's accounting) still apply: a group without controllers of its own counts
with the one above. On a machine with both versions the second is used, which can end a whole group at once; with the
first alone, the freezer stops all of its processes meanwhile. Without the right to make groups (not root, a read-only
mount) there is none, and a claim's processes are found in other ways.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from agent.host import mounts, processes
from agent.host.processes import Process

PREFIX = "gpucloud-"
# The first cgroup namespace's inode is fixed (PROC_CGROUP_INIT_INO in the kernel); in another one, groups above its
# root have other names or none.
_FIRST_NAMESPACE = 0xEFFFFFFB


class Hierarchy(NamedTuple):
    """A mounted tree of groups."""

    mount: Path
    # The part of the tree that is mounted there: "/" except in containers.
    root: str
    version: int

    def path_of(self, pid: int | str) -> Path | None:
        """Return the group of a process; None if it is gone, or in a part of the tree that is not mounted here."""
        try:
            lines = processes.lines_of(Path(f"/proc/{pid}/cgroup"))
        except OSError:
            return None
        for line in lines:
            _, _, named = line.partition(":")
            controllers, found, path = named.partition(":")
            if not found:
                continue
            if (controllers == "") if self.version == 2 else ("freezer" in controllers.split(",")):
                break
        else:
            return None
        below = os.path.relpath(path, self.root)
        return None if below.startswith("..") else self.mount / below


def find() -> Hierarchy | None:
    """Return the tree in which claims' groups are made; None if there is none."""
    try:
        mounted = mounts.read()
    except OSError:
        return None
    found = [
        Hierarchy(Path(one.point), one.root, 2 if one.kind == "cgroup2" else 1)
        for one in mounted
        if one.kind == "cgroup2" or (one.kind == "cgroup" and "freezer" in one.options)
    ]
    return max(found, key=lambda one: one.version, default=None)


class Group:
    """One group, which may have been made by an earlier agent."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def enter(self, process: Process) -> None:
        """Put the process into the group, which is made if need be. Raises OSError."""
        for last_try in (False, True):
            with contextlib.suppress(FileExistsError):
                self.path.mkdir()
            try:
                descriptor = os.open(self.path / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                # An agent that starts removes empty groups.
                if last_try:
                    raise
                continue
            with os.fdopen(descriptor, "w") as file:
                file.write(str(process.pid))
            return

    def pids(self) -> set[int]:
        """Return the pids in it or below it; zombies too. A threaded group below it does not list its own."""
        found: set[int] = set()
        for directory in self._tree():
            with contextlib.suppress(OSError):
                found.update(map(int, (directory / "cgroup.procs").read_text().split()))
        return found

    def is_occupied(self) -> bool:
        """Return whether any process lives in it, also one that ends before it can be inspected."""
        try:
            return "populated 1" in (self.path / "cgroup.events").read_text()
        except OSError:
            return bool(self.pids())

    def members(self) -> set[Process]:
        """Return the living processes in it."""
        return {process for pid in self.pids() if (process := processes.find(pid)) is not None}

    def kill(self) -> None:
        """Send SIGKILL to every process in it, so that none escapes by forking. Raises OSError if it may not."""
        if os.getpid() in self.pids():
            raise PermissionError(f"the agent itself is in {self.path}")
        file = self.path / "cgroup.kill"
        if file.exists():
            file.write_text("1")
        else:
            # Version 1, or a kernel before 5.14.
            self._kill_frozen()

    def remove(self) -> bool:
        """Remove it if it is empty; return False if it is not."""
        for directory in reversed(list(self._tree())):
            try:
                directory.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                return False
        return True

    def freeze(self) -> None:
        """Stop every thread in it. Raises OSError."""
        self._freeze("1", "FROZEN")

    def thaw(self) -> None:
        """Let them run. Raises OSError."""
        self._freeze("0", "THAWED")

    def _kill_frozen(self) -> None:
        self.freeze()
        try:
            for pid in self.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        finally:
            self.thaw()

    def _freeze(self, second: str, first: str) -> None:
        file = self.path / "cgroup.freeze"
        if file.exists():
            file.write_text(second)
        else:
            (self.path / "freezer.state").write_text(first)

    def _tree(self) -> Iterator[Path]:
        """Yield it and the groups below it, parents first."""
        if self.path.is_dir():
            yield self.path
            for directory, below, _ in os.walk(self.path):
                yield from (Path(directory, name) for name in sorted(below))


def place_for(claim_uid: str, process: Process, hierarchy: Hierarchy) -> Path | None:
    """Return the path of the claim's group for this process, made or not; None if the process is gone."""
    path = hierarchy.path_of(process.pid)
    if path is None:
        return None
    # A program of one claim may start one of another: beside it, not in it, or both would end with the first.
    while path.name.startswith(PREFIX) and path != hierarchy.mount:
        path = path.parent
    return path / f"{PREFIX}{claim_uid}"


def sees_all() -> bool:
    """Return whether every group of the machine has a name here: not in a container with a namespace of its own."""
    try:
        return Path("/proc/self/ns/cgroup").stat().st_ino & 0xFFFFFFFF == _FIRST_NAMESPACE
    except OSError:
        # A kernel without such namespaces.
        return True


def container_of(process: Process, hierarchy: Hierarchy) -> Path | None:
    """Return the group that a container's runtime made for the process's container; None outside of containers."""
    path = hierarchy.path_of(process.pid)
    if path is None:
        return None
    above = [path, *path.parents]
    # With nested containers, the outer one.
    return next((group for group in reversed(above) if processes.CONTAINER_ID.search(group.name)), None)


def find_claim_groups(hierarchy: Hierarchy) -> dict[str, set[Path]]:
    """Return the groups that agents have made, by claim; one walk through the tree."""
    found: dict[str, set[Path]] = {}
    for directory, below, _ in os.walk(hierarchy.mount):
        for name in below:
            if name.startswith(PREFIX):
                found.setdefault(name.removeprefix(PREFIX), set()).add(Path(directory, name))
    return found
