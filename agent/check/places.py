"""Checks of the agent's directories: the run directory in memory, the state directory on a disk."""

import os
import stat
import tempfile
from pathlib import Path

from agent import rundir
from agent.check.finding import failed, ok, warning
from agent.host import mounts
from agent.wire import Check

MIB = 1 << 20
# The agent stores kilobytes; so little free space means that others fill the disk.
LOW_BYTES = 256 * MIB
TOO_LOW_BYTES = 16 * MIB


def run_dir(path: Path) -> Check:
    """Check that the run directory is in memory, owned by the agent, and short enough for a socket path."""
    try:
        rundir.RunDir(path).check_socket_path()
    except rundir.RunDirError as error:
        return failed("run-dir", str(error), "Set GPUCLOUD_RUN_DIR.")
    there = _nearest(path)
    if there == path:
        facts = path.stat()
        if facts.st_uid != os.getuid() or facts.st_mode & 0o022 or not stat.S_ISDIR(facts.st_mode):
            return failed(
                "run-dir",
                f"{path} belongs to uid {facts.st_uid} with mode {stat.S_IMODE(facts.st_mode):o}",
                f"It must be a directory of uid {os.getuid()} that nobody else may write to.",
            )
    elif not os.access(there, os.W_OK | os.X_OK):
        return failed(
            "run-dir", f"{path} cannot be made: {there} is not writable", "Run as root, or set GPUCLOUD_RUN_DIR."
        )
    kind = file_system(there)
    if kind not in ("tmpfs", "ramfs"):
        return warning(
            "run-dir",
            f"{path} lies on {kind or 'an unknown file system'}, not in memory",
            "Pages there cost disk writes and outlive a reboot: set GPUCLOUD_RUN_DIR to a directory on a tmpfs.",
        )
    return ok("run-dir", f"{path}, in memory")


def state_dir(path: Path) -> Check:
    """Check that the identity and the last wanted state can be written now."""
    there = _nearest(path)
    try:
        with tempfile.TemporaryFile(dir=there) as trial:
            trial.write(b"\0" * 4096)
            trial.flush()
    except OSError as error:
        return failed(
            "state-dir",
            f"nothing can be written to {there}: {error.strerror}",
            "Free space, or set GPUCLOUD_STATE_DIR.",
        )
    if there == path and path.stat().st_mode & 0o077:
        return warning("state-dir", f"other users may read {path}", f"It holds the agent's key: chmod 700 {path}.")
    return ok("state-dir", f"{path}, writable")


def disk(path: Path) -> Check:
    """Check the free space of the state directory's disk."""
    there = _nearest(path)
    facts = os.statvfs(there)
    free = facts.f_bavail * facts.f_frsize
    words = f"{free // MIB} MiB free at {there}"
    if free < TOO_LOW_BYTES:
        return failed("disk", words, "Free some: otherwise the wanted state is lost at a restart of the agent.")
    return ok("disk", words) if free >= LOW_BYTES else warning("disk", words, "Free some before it is full.")


def file_system(path: Path) -> str | None:
    """Return the file system type of the path by the kernel's list of mounts; None if the list lacks it."""
    real = path.resolve()
    best, kind = -1, None
    for mount in mounts.read():
        point = mount.point.replace("\\040", " ")
        if real.is_relative_to(point) and len(point) >= best:
            best, kind = len(point), mount.kind
    return kind


def _nearest(path: Path) -> Path:
    """Return the path itself or its nearest existing parent."""
    return next(place for place in (path, *path.parents) if place.exists())
