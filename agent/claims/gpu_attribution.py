"""Whose a GPU process is: the claim under which it runs, though it may not say so itself."""

from collections.abc import Mapping

from agent.claims.claim import Holding
from agent.host import processes
from agent.host.processes import Process

# A chain of parents longer than this is no program's.
MOST_PARENTS = 64


class Belonging:
    """Which claim each process belongs to; an answer holds for as long as the process lives."""

    def __init__(self) -> None:
        self._claims: dict[Process, str] = {}
        # Of this look: found when first asked for, since it takes a reading of /proc for every program of every claim.
        self._members: dict[Process, str] | None = None
        self._containers: dict[str | None, set[str]] | None = None

    def keep(self, living: set[Process]) -> None:
        """A new look: forget all others, and who was a claim's."""
        self._members = self._containers = None
        self._claims = {process: claim for process, claim in self._claims.items() if process in living}

    def claim(self, process: Process, holdings: Mapping[str, Holding]) -> str | None:
        """The claim's uid; None where it is no claim's of this node.

        A claim's are those that came in through agent.sock or stand in its usage page, what they started, what carries
        the claim's directory in its environment and is of a user whose programs may be the claim's, and what shares a
        container with one of these.
        """
        known = self._claims.get(process)
        if known in holdings:
            return known
        members = self._known(holdings)
        found = _by_descent(process, members) or _by_directory(process, holdings) or self._by_container(process)
        if found is not None:
            self._claims[process] = found
        return found

    def is_member(self, process: Process, claim_uid: str, holdings: Mapping[str, Holding]) -> bool:
        """Whether more than the process's own word says that it is the claim's."""
        return self._known(holdings).get(process) == claim_uid

    def _known(self, holdings: Mapping[str, Holding]) -> dict[Process, str]:
        if self._members is None:
            self._members = {member: uid for uid, one in holdings.items() for member in one.members.living()}
        return self._members

    def _by_container(self, process: Process) -> str | None:
        container = processes.container(process)
        # The agent itself may run in a container, with programs of several claims beside it.
        if container is None or container == processes.container(processes.myself()):
            return None
        if self._containers is None:
            self._containers = {}
            for member, uid in (self._members or {}).items():
                self._containers.setdefault(processes.container(member), set()).add(uid)
        claims = self._containers.get(container, set())
        return next(iter(claims)) if len(claims) == 1 else None


def _by_descent(process: Process, members: Mapping[Process, str]) -> str | None:
    ancestor: Process | None = process
    for _ in range(MOST_PARENTS):
        if ancestor is None or ancestor in members:
            break
        ancestor = processes.parent(ancestor)
    return None if ancestor is None else members.get(ancestor)


def _by_directory(process: Process, holdings: Mapping[str, Holding]) -> str | None:
    directory = processes.variable(process, "GPUCLOUD_CLAIM_DIR")
    return next(
        (uid for uid, one in holdings.items() if str(one.directory) == directory and one.may_hold(process)), None
    )
