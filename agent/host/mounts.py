"""The mounted file systems, as the kernel lists them to this process."""

from pathlib import Path
from typing import NamedTuple

from agent.host import processes


class Mount(NamedTuple):
    """One mounted file system, with names as the kernel writes them (a blank as \\040)."""

    # The part of the file system that is mounted there.
    root: str
    point: str
    kind: str
    options: frozenset[str]


def read(path: Path = Path("/proc/self/mountinfo")) -> list[Mount]:
    """Return all mounts, but for lines that do not parse: users name mount points too. Raises OSError."""
    found = []
    for line in processes.lines_of(path):
        mount, _, source = line.partition(" - ")
        # Not split at any white space: the kernel escapes only blanks, tabs and line ends in names.
        fields, of_source = mount.split(" "), source.split(" ")
        if len(fields) >= 6 and len(of_source) >= 3:
            found.append(Mount(fields[3], fields[4], of_source[0], frozenset(of_source[-1].split(","))))
    return found
