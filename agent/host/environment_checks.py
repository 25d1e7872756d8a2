"""What the agent finds around itself: the driver, the arbiter, the clock, disks, the library. Each is a condition."""

import os
import time
from collections.abc import Iterable
from pathlib import Path

from agent.host.gpus import Inventory
from agent.host.health import Verdict
from agent.local_wire import ArbiterStatus
from agent.wire import ConditionType

# What is measured is put in order by its time, and tokens are judged by it; less than this nobody notices.
MOST_SKEW_SECONDS = 5.0
# One that ended is started again within this.
ARBITER_SECONDS = 6.0


class Clock:
    """How far this machine's clock is from the server's, since the server last told its own."""

    def __init__(self) -> None:
        self._server_minus_monotonic: float | None = None

    def told(self, server_time: float) -> None:
        """The server's time, just received."""
        self._server_minus_monotonic = server_time - time.monotonic()

    def verdict(self) -> Verdict | None:
        """None before the server ever told its time."""
        if self._server_minus_monotonic is None:
            return None
        ahead = time.time() - time.monotonic() - self._server_minus_monotonic
        if abs(ahead) <= MOST_SKEW_SECONDS:
            return Verdict(ConditionType.CLOCK_IN_SYNC, at_once=True)
        word = "ahead of" if ahead > 0 else "behind"
        # By tens of seconds: a message that changes each second would be sent each second.
        words = (
            f"This machine's clock is about {max(round(abs(ahead), -1), MOST_SKEW_SECONDS):g} s {word} the server's."
        )
        return Verdict(ConditionType.CLOCK_IN_SYNC, "ClockAhead" if ahead > 0 else "ClockBehind", words)


class Driver:
    """Whether the driver is there and still the one under which the running programs began."""

    def __init__(self) -> None:
        self._version: str | None = None

    def verdict(self, inventory: Inventory, version: str | None, *, claims_run: bool, hangs: bool) -> Verdict:
        """`version`: as NVML says now. What changed is taken for granted once no program of before is left."""
        kind = ConditionType.DRIVER_HEALTHY
        if hangs:
            words = "NVML has not answered for seconds: the driver hangs. Limits that are in force stay."
            return Verdict(kind, "DriverHangs", words, unschedulable=True)
        if inventory.problem is not None:
            return Verdict(kind, "NvmlUnavailable", f"{inventory.problem}.", unschedulable=True)
        if version is not None and (self._version is None or not claims_run):
            self._version = version
        if version is not None and version != self._version:
            words = f"The driver is {version} now; programs that still run began under {self._version}."
            return Verdict(kind, "DriverChanged", words, unschedulable=True)
        return Verdict(kind, at_once=True)


class ArbiterWatch:
    """Whether the claims of a GPU get turns; a restart is not worth a word."""

    def __init__(self) -> None:
        self._down_since: float | None = None

    def verdict(self, status: ArbiterStatus, *, now: float) -> Verdict:
        """`now` is monotonic."""
        kind = ConditionType.ARBITER_RUNNING
        if status.running:
            self._down_since = None
            return Verdict(kind, at_once=True)
        self._down_since = now if self._down_since is None else self._down_since
        if now - self._down_since < ARBITER_SECONDS:
            return Verdict(kind, at_once=True)
        words = f"{status.problem or 'The arbiter does not run'}: each claim follows its own limit alone."
        return Verdict(kind, "ArbiterDown", words)


def disks(directories: Iterable[Path], *, least_bytes: int) -> Verdict:
    """Whether there is room for what the agent writes."""
    kind = ConditionType.DISK_SPACE
    for directory in directories:
        try:
            found = os.statvfs(directory)
        except OSError as error:
            return Verdict(kind, "DirectoryGone", f"{directory}: {error.strerror or error}.", unschedulable=True)
        free = found.f_bavail * found.f_frsize
        if free < least_bytes or (found.f_files and not found.f_favail):
            words = f"{directory} has no room left: new limits could not be written there."
            return Verdict(kind, "DiskFull", words, unschedulable=True)
    return Verdict(kind, at_once=True)


def library(paths: Iterable[Path]) -> Verdict:
    """Whether what limited programs load is there."""
    missing = [str(path) for path in paths if not path.is_file()]
    if not missing:
        return Verdict(ConditionType.LIBRARY_PRESENT, at_once=True)
    words = (
        f"{' and '.join(missing)} is missing: no program could be limited. Install it, or build it: make -C libvcuda."
    )
    return Verdict(ConditionType.LIBRARY_PRESENT, "LibraryMissing", words, unschedulable=True)
