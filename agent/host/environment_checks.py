"""Checks of the agent's environment: the driver, the arbiter, the clock, disks, the library. Each is a condition."""

import os
import time
from collections.abc import Iterable
from pathlib import Path

from agent.host.gpus import Inventory
from agent.host.health import Verdict
from agent.local_wire import ArbiterStatus
from agent.wire import ConditionType

# Measurements are ordered by time, and tokens are judged by it; a smaller skew has no effect.
MOST_SKEW_SECONDS = 5.0
# An arbiter that ended is started again within this time.
ARBITER_SECONDS = 6.0


class Clock:
    """The difference between this machine's clock and the server's, since the server last sent its time."""

    def __init__(self) -> None:
        self._server_minus_monotonic: float | None = None

    def record_server_time(self, server_time: float) -> None:
        """Record the server's time, just received."""
        self._server_minus_monotonic = server_time - time.monotonic()

    def verdict(self) -> Verdict | None:
        """Return the clock's condition; None before the server ever sent its time."""
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
    """The check that the driver answers and has the version under which the running programs began."""

    def __init__(self) -> None:
        self._version: str | None = None

    def verdict(self, inventory: Inventory, version: str | None, *, claims_run: bool, hangs: bool) -> Verdict:
        """Return the driver's condition. `version`: NVML's answer now.

        A changed version is accepted once no program that began under the old one is left.
        """
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
    """The check that the claims of a GPU get turns; a restart is not reported."""

    def __init__(self) -> None:
        self._down_since: float | None = None

    def verdict(self, status: ArbiterStatus, *, now: float) -> Verdict:
        """Return the arbiter's condition. `now` is monotonic."""
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
    """Return the condition that the agent's directories have free space."""
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
    """Return the condition that the library for limited programs is there."""
    missing = [str(path) for path in paths if not path.is_file()]
    if not missing:
        return Verdict(ConditionType.LIBRARY_PRESENT, at_once=True)
    words = (
        f"{' and '.join(missing)} is missing: no program could be limited. Install it, or build it: make -C libvcuda."
    )
    return Verdict(ConditionType.LIBRARY_PRESENT, "LibraryMissing", words, unschedulable=True)
