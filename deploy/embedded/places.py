"""Private directories, and socket paths that are short enough."""

import hashlib
import os
import pwd
import stat
import tempfile
from pathlib import Path

# sockaddr_un.sun_path is 108 bytes with its final NUL, and PostgreSQL appends the longest name used here.
LONGEST_SOCKET_PATH = 107
LONGEST_SOCKET_NAME = "/.s.PGSQL.5432.lock"


class PlaceUnusable(Exception):
    """A directory exists but is accessible to others."""


def private_directory(path: Path, *, lent_to: int | None = None) -> Path:
    """Return the directory, created if needed, owned by us and closed to everybody else.

    It may belong to ``lent_to`` instead: root lends directories to the user that PostgreSQL runs as.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    about = path.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid not in {os.geteuid(), lent_to}:
        raise PlaceUnusable(f"{path} exists but is not a directory of user {os.geteuid()}")
    path.chmod(0o700)
    return path


def nobody() -> tuple[int, int]:
    """Return the user and group with the fewest rights."""
    entry = pwd.getpwnam("nobody")
    return entry.pw_uid, entry.pw_gid


def socket_directory(state: Path) -> Path:
    """Return the directory for this state's sockets: beside the state, or under a short name if that path is too long.

    The short name is derived from the state's path, so that a second start finds it again.
    """
    beside = state.resolve() / "run"
    if len(os.fsencode(beside)) + len(LONGEST_SOCKET_NAME) <= LONGEST_SOCKET_PATH:
        return private_directory(beside, lent_to=nobody()[0] if os.geteuid() == 0 else None)
    digest = hashlib.sha256(os.fsencode(state.resolve())).hexdigest()[:12]
    return private_directory(Path(tempfile.gettempdir()) / f"gpucloud-{os.geteuid()}-{digest}")
