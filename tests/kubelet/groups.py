"""The control group below which a test's node puts its pods, under cgroup v1 (in each hierarchy) and v2."""

import contextlib
import os
import signal
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
END_SECONDS = 10.0


class NodeGroup:
    """A control group of this name at the top of every hierarchy."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._places = [place / name for place in _hierarchies()]

    def make(self) -> None:
        """Create it. Under v2 its children get the controllers that the kubelet needs."""
        for place in self._places:
            place.mkdir(exist_ok=True)
            # A v1 group of cpusets begins empty, and takes no process then.
            for file in ("cpuset.cpus", "cpuset.mems"):
                if (place / file).exists() and not (place / file).read_text().strip():
                    (place / file).write_text((place.parent / file).read_text())

    def pids(self) -> set[int]:
        """Return the ids of all processes in it and below."""
        found: set[int] = set()
        for place in self._places:
            for file in place.rglob("cgroup.procs"):
                with contextlib.suppress(OSError):
                    found |= {int(line) for line in file.read_text().split()}
        return found

    def end(self) -> None:
        """Kill what is in it, and remove it."""
        until = time.monotonic() + END_SECONDS
        while (left := self.pids()) and time.monotonic() < until:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        for place in self._places:
            for directory in sorted(place.rglob("*/"), key=lambda path: len(path.parts), reverse=True):
                with contextlib.suppress(OSError):
                    directory.rmdir()
            with contextlib.suppress(OSError):
                place.rmdir()


def _hierarchies() -> list[Path]:
    if (ROOT / "cgroup.controllers").exists():
        return [ROOT]
    return [place for place in sorted(ROOT.iterdir()) if place.is_dir() and not place.is_symlink()]
