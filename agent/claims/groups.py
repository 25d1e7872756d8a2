"""The control groups of one claim: one below each place from which its programs came."""

from pathlib import Path

import structlog

from agent.host import cgroups
from agent.host.cgroups import Group, Hierarchy
from agent.host.processes import Process

log = structlog.get_logger()


class Groups:
    """Made when a program comes in, taken away when the last one has ended. Raises nothing."""

    def __init__(self, claim_uid: str, hierarchy: Hierarchy | None) -> None:
        self._claim_uid = claim_uid
        self._hierarchy = hierarchy
        self._groups: dict[str, Group] = {}

    def adopt(self, found: dict[str, set[Path]]) -> None:
        """Take over those that an earlier agent made."""
        for path in found.get(self._claim_uid, ()):
            self._groups[str(path)] = Group(path)

    def enter(self, process: Process) -> None:
        """Put a program that starts under the claim into a group of the claim's; without one it is known by its pid."""
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
        """Return their paths."""
        return {group.path for group in self._groups.values()}

    def members(self) -> set[Process]:
        """The living processes in them."""
        return set[Process]().union(*(group.members() for group in self._groups.values()))

    def occupied(self) -> bool:
        """Whether anybody lives in them."""
        return any(group.occupied() for group in self._groups.values())

    def kill(self) -> None:
        """SIGKILL to all of them at once."""
        for group in (one for one in self._groups.values() if one.occupied()):
            try:
                group.kill()
            except OSError as error:
                log.info("cgroup-not-killed", cgroup=str(group.path), reason=str(error))

    def tidy(self) -> None:
        """Take those away in which nobody is."""
        for name, group in list(self._groups.items()):
            if not group.occupied() and group.remove():
                del self._groups[name]
