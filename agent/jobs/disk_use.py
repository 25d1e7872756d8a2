"""The disk space that one run has taken. Standard library only."""

import errno
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from agent.host.processes import Process
from agent.jobs import descendants

BLOCK_BYTES = 512
# Other places that every user may write to: the run's own under a unit of its own, else all that its user has there.
SHARED = ("/tmp", "/var/tmp")  # noqa: S108 - they are measured, not written
# Between two measurements, and so many times as long as one takes: a million files take seconds.
LEAST_SECONDS, MOST_SECONDS, PAUSES = 0.5, 10.0, 20


class TooDeep(Exception):
    """Directories are deeper than a path can be long."""


class DiskWatch(threading.Thread):
    """Measure the disk space of this process's run again and again; `reason` says that it is above its bound."""

    def __init__(
        self,
        own: Iterable[str],
        *,
        uid: int | None,
        most: int,
        find: Callable[[], Iterable[Process]] = descendants.find,
    ) -> None:
        super().__init__(daemon=True)
        self._own, self._uid, self._most, self._find = tuple(own), uid, most, find
        self.reason: str | None = None

    def run(self) -> None:
        """Measure until the run is above its bound."""
        while self.reason is None:
            begun = time.monotonic()
            try:
                if measure(self._own, uid=self._uid, programs=self._find()) > self._most:
                    self.reason = f"disk: more than {self._most >> 20:,} MiB"
            except TooDeep:
                self.reason = "disk: its directories are too deep to be measured"
            except OSError:
                # Its directory is being removed.
                pass
            time.sleep(min(MOST_SECONDS, max(LEAST_SECONDS, PAUSES * (time.monotonic() - begun))))


def measure(own: Iterable[str], *, uid: int | None, programs: Iterable[Process]) -> int:
    """Return the bytes in these directories, in files of the user elsewhere, and in removed files that are open.

    Raises TooDeep.
    """
    devices = {Path(path).stat().st_dev for path in own}
    total = sum(_size(facts) for path in own for facts in _files(path))
    if uid is not None:
        total += sum(_size(facts) for path in SHARED for facts in _files_of(uid, path))
    removed = {
        (facts.st_dev, facts.st_ino): _size(facts)
        for process in programs
        for facts in _open_files(process)
        if stat.S_ISREG(facts.st_mode) and facts.st_nlink == 0 and facts.st_dev in devices
    }
    return total + sum(removed.values())


def _size(facts: os.stat_result) -> int:
    return facts.st_blocks * BLOCK_BYTES


def _files(top: str) -> Iterator[os.stat_result]:
    """Yield the facts of all entries below a directory; links are not followed."""
    waiting = [top]
    while waiting:
        try:
            for entry in os.scandir(waiting.pop()):
                yield entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                raise TooDeep from error
            # Removed meanwhile, or closed to this user, who then has it from somebody else.


def _files_of(uid: int, top: str) -> Iterator[os.stat_result]:
    """Yield the facts of a user's entries of a directory, and of all below its own directories there."""
    try:
        entries = list(os.scandir(top))
    except OSError:
        return
    for entry in entries:
        try:
            facts = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        if facts.st_uid == uid:
            yield facts
            if stat.S_ISDIR(facts.st_mode):
                yield from _files(entry.path)


def _open_files(process: Process) -> Iterator[os.stat_result]:
    try:
        found = list(os.scandir(f"/proc/{process.pid}/fd"))
    except OSError:
        return
    for entry in found:
        try:
            yield Path(entry.path).stat()
        except OSError:
            continue
