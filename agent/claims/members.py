"""The processes of one claim: which processes count as its members, which are dead, how they are ended.

A member stands in the usage page, was registered through agent.sock, is in a control group made for such a process, or
was attributed to the claim by a walk through the machine's processes (agent/claims/attribution.py).

A usage page is written by the tenant. A pid in it counts only if that process maps the page: a forged slot must not
make the agent signal another tenant's process.
"""

import signal
from pathlib import Path

from agent.claims.groups import Groups
from agent.claims.registry import Registry
from agent.claims.usage import Attached, UsagePage
from agent.host import processes
from agent.host.processes import Process


class Members:
    """The attached and registered processes of one claim."""

    def __init__(self, claim_uid: str, usage: UsagePage, registry: Registry, groups: Groups) -> None:
        self._claim_uid = claim_uid
        self._usage = usage
        self._registry = registry
        self._groups = groups
        self._namespace = processes.own_namespace()
        self._sees_all = processes.sees_all()
        # Once proven, a member is one until it dies: a process that is just ending maps nothing any more, and one that
        # erases its slot from the page still belongs to the claim.
        self._proven: dict[Attached, Process] = {}
        self._strangers: set[Attached] = set()
        self._signalled: dict[Process, signal.Signals] = {}
        # Processes that only a walk through the machine finds: children of members that have not touched a GPU yet.
        # Without this they would start on a GPU after the claim's pages are gone.
        self._attributed: set[Process] = set()

    def refresh(self, rows: list[Attached]) -> list[Attached]:
        """Take the page's rows; return those whose process is dead, to be cleared."""
        self._strangers &= set(rows)
        unknown = [row for row in rows if row not in self._proven and row not in self._strangers]
        elsewhere = {(row.namespace, row.pid) for row in unknown if row.namespace != self._namespace}
        found = processes.find_in_namespaces(elsewhere)
        dead = [row for row, process in self._proven.items() if not processes.alive(process)]
        for row in unknown:
            own = row.namespace == self._namespace
            process = processes.find(row.pid) if own else found.get((row.namespace, row.pid))
            if process is None or process.start_ticks != row.start_ticks:
                if own or self._sees_all:
                    dead.append(row)
            elif processes.maps(process, self._usage.inode, self._usage.path.name):
                self._proven[row] = process
            else:
                self._strangers.add(row)
        for row in dead:
            self._proven.pop(row, None)
        return dead

    def adopt_groups(self, made: dict[str, set[Path]]) -> None:
        """Adopt the control groups that an earlier agent made for the claim."""
        self._groups.adopt(made)

    @property
    def group_paths(self) -> set[Path]:
        """The control groups that agents made for the claim."""
        return self._groups.paths

    def living(self) -> list[Process]:
        """Return every living process of the claim."""
        attributed = {process for process in self._attributed if processes.alive(process)}
        return sorted(self.attached() | attributed | self._registry.living(self._claim_uid) | self._groups.members())

    def attached(self) -> set[Process]:
        """Return the living processes that stand in the usage page: those that use a GPU."""
        return {process for process in self._proven.values() if processes.alive(process)}

    def freeze(self) -> None:
        """Stop all threads of the processes in the claim's groups; without a group none stops."""
        self._groups.freeze()

    def thaw(self) -> None:
        """Let them run."""
        self._groups.thaw()

    @property
    def known(self) -> set[Process]:
        """The processes that were living when they were last checked."""
        return set(self._proven.values()) | self._attributed | self._registry.find_registered(self._claim_uid)

    @property
    def any_left(self) -> bool:
        """True if any process of the claim lives, also one that could not be inspected."""
        return bool(self.living()) or self._groups.is_occupied()

    def using_page(self) -> list[Process]:
        """Return the living processes that have the usage page mapped, or that could not be inspected."""
        living = self.living()
        return [one for one in living if processes.may_map(one, self._usage.inode, self._usage.path.name)]

    def find_attached(self, row: Attached) -> Process | None:
        """Return the process that stands in this row and maps the page; None if the row is forged."""
        return self._proven.get(row)

    def set_attributed(self, attributed: set[Process]) -> None:
        """Set the processes that a walk through the machine attributed to the claim."""
        self._attributed = attributed

    def ask_to_end(self) -> None:
        """Send SIGTERM to each living process that has not had it."""
        for process in self.living():
            if process not in self._signalled and processes.send(process, signal.SIGTERM):
                self._signalled[process] = signal.SIGTERM

    def kill(self) -> list[Process]:
        """Send SIGKILL to all; return the processes that it reached now.

        Repeat it until none is left: a process outside of a group may have forked.
        """
        living = self.living()
        self._signalled = {process: self._signalled[process] for process in living if process in self._signalled}
        self._groups.kill()
        reached = []
        for process in living:
            if self._signalled.get(process) != signal.SIGKILL:
                # A process that ended with its group is gone by now.
                if processes.send(process, signal.SIGKILL) or not processes.alive(process):
                    reached.append(process)
                self._signalled[process] = signal.SIGKILL
        return reached
