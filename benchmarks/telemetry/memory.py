"""Memory of processes, from /proc: proportional, so that memory shared by forked workers is counted once."""

from pathlib import Path


def mib_below(pid: int) -> float:
    """Return the proportional set size of a process and its descendants, in MiB."""
    return sum(_kib(member) for member in _family(pid)) / 1024


def _family(pid: int) -> set[int]:
    found, todo = set(), [pid]
    while todo:
        one = todo.pop()
        found.add(one)
        for thread in Path(f"/proc/{one}/task").glob("*/children"):
            try:
                todo += [int(child) for child in thread.read_text().split()]
            except OSError:
                continue
    return found


def _kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
