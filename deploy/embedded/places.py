"""Directories that only their owner may enter, and sockets whose paths are short enough."""

import hashlib
import os
import stat
import tempfile
from pathlib import Path

# sockaddr_un.sun_path is 108 bytes with its final NUL, and PostgreSQL appends the longest name used here.
LONGEST_SOCKET_PATH = 107
LONGEST_SOCKET_NAME = "/.s.PGSQL.5432.lock"


class PlaceUnusable(Exception):
    """A directory exists but is not ours alone."""


def private_directory(path: Path) -> Path:
    """The directory, made if needed, owned by us and closed to everybody else."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    about = path.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
        raise PlaceUnusable(f"{path} exists but is not a directory of user {os.geteuid()}")
    path.chmod(0o700)
    return path


def socket_directory(state: Path) -> Path:
    """Where the sockets of this state go: beside the state, or under a short name where that path is too long.

    The short name is derived from the state's path, so that a second start finds it again.
    """
    beside = state.resolve() / "run"
    if len(os.fsencode(beside)) + len(LONGEST_SOCKET_NAME) <= LONGEST_SOCKET_PATH:
        return private_directory(beside)
    digest = hashlib.sha256(os.fsencode(state.resolve())).hexdigest()[:12]
    return private_directory(Path(tempfile.gettempdir()) / f"gpucloud-{os.geteuid()}-{digest}")
