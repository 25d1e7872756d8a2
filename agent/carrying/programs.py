"""The processes of one claim as CRIU sees them: one tree, of one user, with the pids of its namespace."""

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from agent.carrying.images import User
from agent.host import processes
from agent.host.processes import Process

# Of the fields of /proc/PID/stat after the name.
_SESSION, _PARENT = 3, 1


class Facts(NamedTuple):
    """A process as /proc describes it."""

    process: Process
    # In its own pid namespace, and that one's inode.
    pid: int
    namespace: int
    user: User
    session: int
    parent: int


def read(process: Process) -> Facts | None:
    """Return the facts of a living process; None if it is gone."""
    place = Path(f"/proc/{process.pid}")
    try:
        fields = (place / "stat").read_bytes().rpartition(b")")[2].split()
        status = dict(
            line.split(":\t", 1)
            for line in (place / "status").read_text(errors="replace").splitlines()
            if ":\t" in line
        )
        namespace = (place / "ns/pid").stat().st_ino & 0xFFFFFFFF
    except (OSError, ValueError):
        return None
    groups = tuple(sorted(set(map(int, status.get("Groups", "").split()))))
    user = User(int(status["Uid"].split()[0]), int(status["Gid"].split()[0]), groups)
    pid = int(status["NSpid"].split()[-1])
    return Facts(process, pid, namespace, user, int(fields[_SESSION]), int(fields[_PARENT]))


def find_tree(attached: Collection[Process]) -> tuple[list[Facts], str | None]:
    """Return the tree of all the processes that use a GPU, the first process first; or why there is none."""
    own = [facts for one in attached if (facts := read(one)) is not None]
    sessions = {one.session for one in own}
    if not sessions:
        return [], "None of its programs uses a GPU, so there is nothing to carry: restart them on the other node."
    if len(sessions) != 1:
        return (
            [],
            f"Its programs are {len(sessions)} sessions, and one is carried: start one program, which starts others.",
        )
    (session,) = sessions
    leader = processes.find(session)
    first = read(leader) if leader is not None else None
    if first is None:
        return [], (
            "Its first process, whose session its programs are in, has ended or is elsewhere: start them by "
            "`gpucloud-agent exec --movable`."
        )
    tree = [first, *_descendants(first)]
    if strangers := sorted(one.process.pid for one in own if one.process not in {facts.process for facts in tree}):
        return [], f"Process(es) {strangers} are no children of process {first.process.pid}."
    if len({(one.user, one.namespace) for one in tree}) != 1:
        return [], "Its processes have different users, groups or pid namespaces."
    return tree, None


def _descendants(first: Facts) -> list[Facts]:
    everyone = _look_at_all()
    found, pids = [], {first.process.pid}
    while more := [one for one in everyone if one.parent in pids and one.process.pid not in pids]:
        found += more
        pids |= {one.process.pid for one in more}
    return found


def _look_at_all() -> list[Facts]:
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    found = (read(process) for pid in pids if (process := processes.find(pid)) is not None)
    return [facts for facts in found if facts is not None]


def in_namespace(inode: int) -> list[Facts]:
    """Return all processes of a pid namespace but its first."""
    return [one for one in _look_at_all() if one.namespace == inode and one.pid != 1]


def clocks_ahead(process: Process) -> tuple[int, int]:
    """Return the nanoseconds by which a process's CLOCK_MONOTONIC and CLOCK_BOOTTIME are ahead of the machine's."""
    ahead = {"monotonic": 0, "boottime": 0}
    try:
        lines = Path(f"/proc/{process.pid}/timens_offsets").read_text().splitlines()
    except OSError:
        lines = []
    for name, seconds, nanoseconds in (line.split() for line in lines):
        ahead[name] = int(seconds) * 10**9 + int(nanoseconds)
    return ahead["monotonic"], ahead["boottime"]
