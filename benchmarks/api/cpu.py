"""CPU time of processes, from /proc: the cost of a request on a shared machine."""

import os
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def seconds_below(pid: int) -> float:
    """Return user and system time of a process and its descendants that still run."""
    parents, spent = {}, {}
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit() and (fields := _stat(directory)):
            # Fields 4, 14 and 15 of proc(5): the parent, user and system ticks.
            parents[int(directory.name)] = int(fields[1])
            spent[int(directory.name)] = (int(fields[11]) + int(fields[12])) / TICKS
    family = {pid}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(spent.get(member, 0.0) for member in family)


def _stat(directory: Path) -> list[str]:
    try:
        return (directory / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
