"""The removal of a directory that a tenant's programs have filled: whatever is in it, and nothing outside of it.

Links are removed, never followed: every name is used relative to an open directory, and only real directories are
opened. Trees are as deep as the tenant likes: what a directory has below it is moved up before it is removed, so
neither open files nor the stack grow with the depth.
"""

import contextlib
import os
import secrets
import stat
from pathlib import Path

OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: Path) -> None:
    """Remove the directory with everything in it. Raises OSError if something stays."""
    try:
        top = os.open(path, OPEN)
    except FileNotFoundError:
        return
    try:
        while names := os.listdir(top):  # noqa: PTH208 - of a descriptor
            for name in names:
                if not _unlink(name, top):
                    _empty(name, top)
                    os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    path.rmdir()


def _unlink(name: str, directory: int) -> bool:
    """Remove what is no directory; return False if it is one."""
    if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
        return False
    os.unlink(name, dir_fd=directory)
    return True


def _empty(name: str, top: int) -> None:
    """Remove the files of a directory below `top`, and move its directories to `top`."""
    _open_to_owner(name, top)
    directory = os.open(name, OPEN, dir_fd=top)
    try:
        for each in os.listdir(directory):  # noqa: PTH208 - likewise
            if not _unlink(each, directory):
                _open_to_owner(each, directory)
                os.rename(each, secrets.token_hex(16), src_dir_fd=directory, dst_dir_fd=top)
    finally:
        os.close(directory)


def _open_to_owner(name: str, directory: int) -> None:
    """Let the agent in where it is the owner itself. Root needs no leave, and must not follow what is a link by now."""
    if os.geteuid() != 0:
        with contextlib.suppress(OSError):
            os.chmod(name, 0o700, dir_fd=directory)
