"""Control groups of both versions: a claim's programs have one of their own, which no child of theirs can leave.

It is made *below* the group from which a program comes, so that what the machine's owner laid on that group (memory,
CPU, a session's end, a batch system's accounting) still holds: a group without controllers of its own counts with the
one above. On a machine with both versions the second is taken, which can end a whole group at once; where there is the
first alone, the freezer holds everybody still meanwhile. Where groups may not be made (not root, a read-only mount)
there is none, and a claim's processes are known otherwise.
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
    # What of the tree is mounted there: "/" but in containers.
    root: str
    version: int

    def path_of(self, pid: int | str) -> Path | None:
        """The group of a process; None where it is gone, or in a part of the tree that is not mounted here."""
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
    """The tree in which claims' groups are made."""
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
    """One group, which may have been made by an agent before this one."""

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
                # An agent that starts takes empty groups away.
                if last_try:
                    raise
                continue
            with os.fdopen(descriptor, "w") as file:
                file.write(str(process.pid))
            return

    def pids(self) -> set[int]:
        """Who is in it or below it; zombies too. A threaded group below it does not say."""
        found: set[int] = set()
        for directory in self._tree():
            with contextlib.suppress(OSError):
                found.update(map(int, (directory / "cgroup.procs").read_text().split()))
        return found

    def occupied(self) -> bool:
        """Whether anybody lives in it: also where each process ends before it can be looked at."""
        try:
            return "populated 1" in (self.path / "cgroup.events").read_text()
        except OSError:
            return bool(self.pids())

    def members(self) -> set[Process]:
        """The living processes in it."""
        return {process for pid in self.pids() if (process := processes.find(pid)) is not None}

    def kill(self) -> None:
        """SIGKILL to everybody in it, with nobody getting away by forking. Raises OSError where it may not."""
        if os.getpid() in self.pids():
            raise PermissionError(f"the agent itself is in {self.path}")
        file = self.path / "cgroup.kill"
        if file.exists():
            file.write_text("1")
        else:
            # Version 1, or a kernel before 5.14.
            self._kill_frozen()

    def remove(self) -> bool:
        """Take it away if it is empty; False where it is not."""
        for directory in reversed(list(self._tree())):
            try:
                directory.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                return False
        return True

    def _kill_frozen(self) -> None:
        self._freeze("1", "FROZEN")
        try:
            for pid in self.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        finally:
            self._freeze("0", "THAWED")

    def _freeze(self, second: str, first: str) -> None:
        file = self.path / "cgroup.freeze"
        if file.exists():
            file.write_text(second)
        else:
            (self.path / "freezer.state").write_text(first)

    def _tree(self) -> Iterator[Path]:
        """It and those below it, parents first."""
        if self.path.is_dir():
            yield self.path
            for directory, below, _ in os.walk(self.path):
                yield from (Path(directory, name) for name in sorted(below))


def place_for(claim_uid: str, process: Process, hierarchy: Hierarchy) -> Path | None:
    """Where the claim's group for this process is, or is to be; None where the process is not to be found."""
    path = hierarchy.path_of(process.pid)
    if path is None:
        return None
    # A program of one claim may start one of another: beside it, not in it, or both would end with the first.
    while path.name.startswith(PREFIX) and path != hierarchy.mount:
        path = path.parent
    return path / f"{PREFIX}{claim_uid}"


def sees_all() -> bool:
    """Return whether every group of the machine has its name here: not in a container with a namespace of its own."""
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
    # Of containers in one another, the outer.
    return next((group for group in reversed(above) if processes.CONTAINER_ID.search(group.name)), None)


def named(hierarchy: Hierarchy) -> dict[str, set[Path]]:
    """The groups that agents have made, by claim; one walk through the tree."""
    found: dict[str, set[Path]] = {}
    for directory, below, _ in os.walk(hierarchy.mount):
        for name in below:
            if name.startswith(PREFIX):
                found.setdefault(name.removeprefix(PREFIX), set()).add(Path(directory, name))
    return found
