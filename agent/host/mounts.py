"""What is mounted, as the kernel lists it to this process."""

from pathlib import Path
from typing import NamedTuple

from agent.host import processes


class Mount(NamedTuple):
    """One mounted file system, with names as the kernel writes them (a blank as \\040)."""

    # What of the file system is mounted there.
    root: str
    point: str
    kind: str
    options: frozenset[str]


def read(path: Path = Path("/proc/self/mountinfo")) -> list[Mount]:
    """All of them, but for lines that do not parse: users name mount points too. Raises OSError."""
    found = []
    for line in processes.lines_of(path):
        mount, _, source = line.partition(" - ")
        # Not at any white space: of that the kernel writes only blanks, tabs and line ends as digits.
        fields, of_source = mount.split(" "), source.split(" ")
        if len(fields) >= 6 and len(of_source) >= 3:
            found.append(Mount(fields[3], fields[4], of_source[0], frozenset(of_source[-1].split(","))))
    return found
