"""The processes of one claim: who is believed to be one, who is dead, how they are ended.

To be one is to stand in the usage page, to have come in through agent.sock, to be in a control group that was made for
one of these, or what a look at the whole machine tells (agent/claims/attribution.py).

A usage page is written by the tenant. A pid in it is believed only if that process maps the page: a forged slot must
not make the agent signal a stranger.
"""

import signal
from pathlib import Path

from agent.claims.groups import Groups
from agent.claims.registry import Registry
from agent.claims.usage import Attached, UsagePage
from agent.host import processes
from agent.host.processes import Process


class Members:
    """One claim's processes, attached and registered."""

    def __init__(self, claim_uid: str, usage: UsagePage, registry: Registry, groups: Groups) -> None:
        self._claim_uid = claim_uid
        self._usage = usage
        self._registry = registry
        self._groups = groups
        self._namespace = processes.own_namespace()
        self._sees_all = processes.sees_all()
        # Once proven, a member is one until it dies: one that is just ending maps nothing any more, and one that rubs
        # its name out of the page is still the claim's.
        self._proven: dict[Attached, Process] = {}
        self._strangers: set[Attached] = set()
        self._signalled: dict[Process, signal.Signals] = {}
        # Those that only a look at the machine gives away: children of members that have not touched a GPU yet. Left
        # alone they would start on a GPU after the claim's pages are gone.
        self._kin: set[Process] = set()

    def refresh(self, rows: list[Attached]) -> list[Attached]:
        """Take the page's rows; returns those whose process is dead, to be cleared."""
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
        """Take over the control groups that an earlier agent made for it."""
        self._groups.adopt(made)

    @property
    def group_paths(self) -> set[Path]:
        """The control groups that agents made for it."""
        return self._groups.paths

    def living(self) -> list[Process]:
        """Every process of the claim that lives."""
        attached = {process for process in self._proven.values() if processes.alive(process)}
        kin = {process for process in self._kin if processes.alive(process)}
        return sorted(attached | kin | self._registry.living(self._claim_uid) | self._groups.members())

    @property
    def known(self) -> set[Process]:
        """Those that were living when they were last looked at."""
        return set(self._proven.values()) | self._kin | self._registry.registered(self._claim_uid)

    @property
    def any_left(self) -> bool:
        """Whether any process of the claim lives, also one that nobody has been able to look at."""
        return bool(self.living()) or self._groups.occupied()

    def using_page(self) -> list[Process]:
        """Return the living processes that have the usage page mapped, or that nobody has been able to look at."""
        living = self.living()
        return [one for one in living if processes.may_map(one, self._usage.inode, self._usage.path.name)]

    def attached(self, row: Attached) -> Process | None:
        """The process that stands in this row and maps the page; None where it is forged."""
        return self._proven.get(row)

    def know_kin(self, kin: set[Process]) -> None:
        """Those that a look at the machine found."""
        self._kin = kin

    def ask_to_end(self) -> None:
        """SIGTERM to each living process that has not had it."""
        for process in self.living():
            if process not in self._signalled and processes.send(process, signal.SIGTERM):
                self._signalled[process] = signal.SIGTERM

    def kill(self) -> list[Process]:
        """SIGKILL to all; returns whom it reached now. To be repeated: who is not in a group may have forked."""
        living = self.living()
        self._signalled = {process: self._signalled[process] for process in living if process in self._signalled}
        self._groups.kill()
        reached = []
        for process in living:
            if self._signalled.get(process) != signal.SIGKILL:
                # One that the group took with it is gone by now.
                if processes.send(process, signal.SIGKILL) or not processes.alive(process):
                    reached.append(process)
                self._signalled[process] = signal.SIGKILL
        return reached
