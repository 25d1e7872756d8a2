"""Processes by pid *and* start time, so that a reused pid is never taken for the process that had it before."""

import os
import re
import signal
from pathlib import Path
from typing import NamedTuple

# The fields of /proc/<pid>/stat after the command's closing parenthesis: the state is the third field of all, the
# start time the 22nd (proc(5)).
_STATE = 0
_PARENT = 1
_THREADS = 17
_START = 19
_DEAD = frozenset("ZXx")
# Docker, containerd, CRI-O and Podman all name a container's cgroup after its id.
CONTAINER_ID = re.compile(r"[0-9a-f]{64}")
# Bound of a path in a text.
MOST_CHARACTERS = 300
# The first pid namespace's inode is fixed (PROC_PID_INIT_INO in the kernel); from there every process is visible.
_FIRST_NAMESPACE = 0xEFFFFFFC


class Process(NamedTuple):
    """One process for as long as the machine is up."""

    pid: int
    # Clock ticks after boot, as /proc/<pid>/stat has it.
    start_ticks: int


def find(pid: int) -> Process | None:
    """Return the living process with this pid; None if there is none.

    A zombie is dead: it has given everything back but its number. A process whose main thread has ended shows as a
    zombie too while its other threads run: it lives.

    Return None also if /proc shows other users' processes to nobody else (mounted with hidepid=1).
    """
    found = find_with_parent(pid)
    return found[0] if found is not None else None


def find_with_parent(pid: int) -> tuple[Process, int] | None:
    """Return the living process with this pid, as `find` does, and the pid of its parent."""
    if pid <= 0:
        return None
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    if fields[_STATE].decode() in _DEAD and int(fields[_THREADS]) <= 1:
        return None
    return Process(pid, int(fields[_START])), int(fields[_PARENT])


def alive(process: Process) -> bool:
    """Return whether this very process lives."""
    return find(process.pid) == process


def is_stopped(process: Process) -> bool:
    """Return whether a signal has stopped the process (SIGSTOP, a debugger)."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return False
    return fields[_STATE] in (b"T", b"t")


def send(process: Process, number: signal.Signals) -> bool:
    """Signal this very process; return False if it is gone or not ours to signal."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (ProcessLookupError, OSError):
        return False
    try:
        # The descriptor pins the process; only then does the check that it is the intended one hold.
        if not alive(process):
            return False
        signal.pidfd_send_signal(descriptor, number)
        return True
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(descriptor)


def maps(process: Process, inode: int, name: str) -> bool:
    """Return whether the process has this file mapped: the proof of membership that its own word is not.

    The device is not compared: on some file systems /proc shows another one than stat does. A foreign process does not
    map a file of this inode and name.
    """
    ending = b"/" + name.encode()
    try:
        # If the main thread has ended, only the others have anything mapped.
        for task in sorted(Path(f"/proc/{process.pid}/task").iterdir()):
            with (task / "maps").open("rb") as lines:
                rows = [line.split(maxsplit=5) for line in lines]
            if rows:
                return any(int(row[4]) == inode and row[5].strip().endswith(ending) for row in rows)
    except OSError:
        return False
    return False


def may_map(process: Process, inode: int, name: str) -> bool:
    """Return False only if the process is known not to have this file mapped; like `maps`, but doubt counts as yes."""
    try:
        (Path(f"/proc/{process.pid}") / "maps").read_bytes()
    except OSError:
        return alive(process)
    return maps(process, inode, name)


def other_file(process: Process, path: Path) -> str | None:
    """Return another file of this name that the process maps; None if it maps this one, or none of the name.

    A file that was replaced since is another one: the kernel shows it as deleted. Its path is for people to read: users
    choose it, and it may be no text, or longer than what the server takes.
    """
    try:
        # Not splitlines: a path may contain a carriage return.
        lines = Path(f"/proc/{process.pid}/maps").read_bytes().split(b"\n")
        wanted = path.stat().st_ino
    except OSError:
        return None
    found = None
    for fields in (line.split(maxsplit=5) for line in lines):
        if len(fields) == 6 and fields[5].removesuffix(b" (deleted)").endswith(b"/" + path.name.encode()):
            if int(fields[4]) == wanted:
                return None
            found = fields[5].decode(errors="replace")[:MOST_CHARACTERS]
    return found


def image_of(process: Process) -> tuple[str, str]:
    """Return the process's binary, and where its stack begins: both may change if it executes another program.

    Empty if it is gone or of somebody whose processes we may not read.
    """
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        # Field 28 of proc(5); the first one after the name is the third.
        return str(Path(f"/proc/{process.pid}/exe").readlink()), fields[25]
    except (OSError, IndexError):
        return "", ""


def myself() -> Process:
    """Return this process."""
    process = find(os.getpid())
    assert process is not None
    return process


def command(process: Process) -> str:
    """Return the program's name, as the kernel keeps it (15 bytes); empty if the process is gone."""
    try:
        return Path(f"/proc/{process.pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def parent_pid(process: Process) -> int | None:
    """Return the pid of its parent, original or adoptive; 0 for the first process, None if it is gone."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[_PARENT])


def parent(process: Process) -> Process | None:
    """Return its parent, original or adoptive; None for the first process."""
    return find(parent_pid(process) or 0)


def variable(process: Process, name: str) -> str | None:
    """Return the process's initial value of this environment variable; None without it, or if it may not be read."""
    try:
        environment = b"\0" + Path(f"/proc/{process.pid}/environ").read_bytes()
    except OSError:
        return None
    _, found, rest = environment.partition(f"\0{name}=".encode())
    return os.fsdecode(rest.partition(b"\0")[0]) if found else None


def user(process: Process) -> int | None:
    """Return the real user id, whatever rights its program gave it since; None if it is gone.

    Not the owner of its directory in /proc: that is root for a process that allows no dump.
    """
    try:
        lines = Path(f"/proc/{process.pid}/status").read_bytes().split(b"\n")
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith(b"Uid:")), None)


def container(process: Process) -> str | None:
    """Return a name for the container that the process runs in; None outside of containers.

    It is the cgroup that its runtime named after its id, with all that is above it: a user may make a cgroup of the id
    alone too. Else it is its pid namespace with its cgroup, since the containers of a pod may share the one and those
    of a test the other.
    """
    try:
        cgroups = lines_of(Path(f"/proc/{process.pid}/cgroup"))
        for line in cgroups:
            if found := CONTAINER_ID.search(line):
                return line[: found.end()]
        namespace = Path(f"/proc/{process.pid}/ns/pid").stat().st_ino & 0xFFFFFFFF
    except OSError:
        return None
    return f"{namespace} {cgroups}" if namespace != own_namespace() else None


def lines_of(path: Path) -> list[str]:
    """Return the lines of such a file of /proc. Raises OSError.

    Users choose the names in it: bytes that are no text stay as they are, and only a line's end ends a line.
    """
    return os.fsdecode(path.read_bytes()).removesuffix("\n").split("\n")


def has_open(process: Process, prefix: str) -> bool:
    """Return whether the process has a file open whose path begins with the prefix."""
    try:
        return any(str(link.readlink()).startswith(prefix) for link in Path(f"/proc/{process.pid}/fd").iterdir())
    except OSError:
        return False


def boot_id() -> str:
    """Return the id of the machine's present boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def own_namespace() -> int:
    """Return the inode of our pid namespace, as libvcuda writes it into its slots (32 bits)."""
    return Path("/proc/self/ns/pid").stat().st_ino & 0xFFFFFFFF


def sees_all() -> bool:
    """Return whether a process that /proc does not show is dead, in whatever namespace it was."""
    return own_namespace() == _FIRST_NAMESPACE


def find_in_namespaces(wanted: set[tuple[int, int]]) -> dict[tuple[int, int], Process]:
    """Return the living processes among (pid namespace, pid there); one walk through /proc for all."""
    found: dict[tuple[int, int], Process] = {}
    namespaces = {namespace for namespace, _ in wanted}
    for entry in Path("/proc").iterdir() if wanted else ():
        if not entry.name.isdigit():
            continue
        try:
            namespace = (entry / "ns/pid").stat().st_ino & 0xFFFFFFFF
            if namespace not in namespaces:
                continue
            status = (entry / "status").read_bytes()
        except OSError:
            continue
        # Not splitlines: a program's name may contain a carriage return, and the text after it is no line of the
        # kernel's.
        line = next((line for line in status.split(b"\n") if line.startswith(b"NSpid:")), b"NSpid: 0")
        inner = (namespace, int(line.split()[-1]))
        process = find(int(entry.name)) if inner in wanted else None
        if process is not None:
            found[inner] = process
    return found
