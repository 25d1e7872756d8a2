"""The control groups of one claim: one below each group from which its programs came."""

import os
from pathlib import Path

from agent.host import cgroups
from agent.host.cgroups import Group, Hierarchy
from agent.host.processes import Process
from agent.logs import log


class Groups:
    """Control groups made when a program enters, removed when the last one has ended. Raises nothing."""

    def __init__(self, claim_uid: str, hierarchy: Hierarchy | None) -> None:
        self._claim_uid = claim_uid
        self._hierarchy = hierarchy
        self._groups: dict[str, Group] = {}

    def adopt(self, found: dict[str, set[Path]]) -> None:
        """Adopt the groups that an earlier agent made."""
        for path in found.get(self._claim_uid, ()):
            self._groups[str(path)] = Group(path)

    def enter(self, process: Process) -> None:
        """Put a program that starts under the claim into a group of the claim; without one it is known by its pid."""
        if self._hierarchy is None:
            return
        path = cgroups.place_for(self._claim_uid, process, self._hierarchy)
        if path is None:
            return
        group = self._groups.get(str(path)) or Group(path)
        try:
            group.enter(process)
        except OSError as error:
            group.remove()
            log.info("no-cgroup", claim=self._claim_uid, pid=process.pid, reason=str(error))
            return
        self._groups[str(path)] = group

    @property
    def paths(self) -> set[Path]:
        """The paths of the groups."""
        return {group.path for group in self._groups.values()}

    def members(self) -> set[Process]:
        """Return the living processes in the groups."""
        return set[Process]().union(*(group.members() for group in self._groups.values()))

    def is_occupied(self) -> bool:
        """Return whether any process lives in the groups."""
        return any(group.is_occupied() for group in self._groups.values())

    def kill(self) -> None:
        """Send SIGKILL to all processes in the groups at once."""
        for group in (one for one in self._groups.values() if one.is_occupied()):
            try:
                group.kill()
            except OSError as error:
                log.info("cgroup-not-killed", cgroup=str(group.path), reason=str(error))

    def freeze(self) -> None:
        """Stop all threads in the groups; a group with the agent itself in it is left out."""
        for group in self._groups.values():
            if os.getpid() not in group.pids():
                self._set(group, frozen=True)

    def thaw(self) -> None:
        """Let all threads in the groups run."""
        for group in self._groups.values():
            self._set(group, frozen=False)

    def _set(self, group: Group, *, frozen: bool) -> None:
        try:
            group.freeze() if frozen else group.thaw()
        except OSError as error:
            log.info("cgroup-not-frozen" if frozen else "cgroup-not-thawed", cgroup=str(group.path), reason=str(error))

    def tidy(self) -> None:
        """Remove the empty groups."""
        for name, group in list(self._groups.items()):
            if not group.is_occupied() and group.remove():
                del self._groups[name]
