"""Processor time of the programs that a benchmark has started."""

import os
from collections import defaultdict
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def seconds_by_program() -> dict[str, float]:
    """Return the seconds that this process's descendants used, by program; `manage.py NAME` is called NAME.

    What ended children used is counted where their parent still runs, as PostgreSQL's sessions are.
    """
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        pid = int(path.parent.name)
        parents[pid], used[pid] = int(fields[1]), sum(map(int, fields[11:15])) / TICKS
    found: defaultdict[str, float] = defaultdict(float)
    for pid, seconds in used.items():
        if pid != os.getpid() and _is_ours(pid, parents):
            found[_program(pid)] += seconds
    return dict(found)


def milliseconds_each(before: dict[str, float], after: dict[str, float], count: int) -> dict[str, float]:
    """Return the milliseconds of each program between two measurements, divided by `count`."""
    return {name: (after[name] - before.get(name, 0.0)) * 1000 / count for name in sorted(after)}


def _is_ours(pid: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        if pid == os.getpid():
            return True
        pid = parents[pid]
    return False


def _program(pid: int) -> str:
    """Return the name of the process's program; a session of PostgreSQL has that of its server."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "ended"
    if b"manage.py" in words:
        return words[words.index(b"manage.py") + 1].decode()
    name = words[0].rpartition(b"/")[2].partition(b":")[0].decode()
    return "postgres" if name.startswith("postgres") else name
