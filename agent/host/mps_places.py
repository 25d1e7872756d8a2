"""The directories of MPS control daemons, one for each trust group, and the users who may enter them.

<run dir>/mps/<name>/        searchable by the agent's user and by the users of the group's claims
<run dir>/mps/<name>/pipe/   the daemon's sockets: CUDA_MPS_PIPE_DIRECTORY; containers have it mounted
<run dir>/mps/<name>/log/    control.log and server.log: CUDA_MPS_LOG_DIRECTORY
<run dir>/mps/<name>/daemon.json    the running daemon, so that the next agent adopts it
<run dir>/mps/<name>/fall    the last end of a server's clients, with their claims

A container has only `pipe` mounted, so who may enter is decided by its claim alone; outside of containers it is decided
by the user, with an access control list on the directory above.
"""

import contextlib
import hashlib
import os
import shutil
import stat
import struct
import time
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from agent.wire_words import ALL_TENANTS

if TYPE_CHECKING:
    # Benchmarks of MPS run on machines without the agent's packages.
    from agent.wire import Assignment

ACL = "system.posix_acl_access"
# linux/posix_acl_xattr.h: the version, then tag, permissions and id of each entry.
_VERSION, _ENTRY = struct.pack("<I", 2), struct.Struct("<HHI")
_OWNER, _USER, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
_NOBODY = 0xFFFFFFFF
_SEARCH = 1


class TrustGroup(NamedTuple):
    """The claims on one GPU that share an MPS server: a fatal fault of one takes all of them down.

    Those of one tenant; or of all, where `tenant` is `ALL_TENANTS`.
    """

    gpu_uuid: str
    tenant: str

    @classmethod
    def of(cls, one: "Assignment") -> "TrustGroup":
        """Return the group of the assignment."""
        return cls(one.gpu_uuid, one.trust_group or one.tenant)

    @property
    def owner(self) -> str:
        """The tenants in words."""
        return "all tenants" if self.tenant == ALL_TENANTS else f"tenant {self.tenant}"


class Places(NamedTuple):
    """The directories of one group's daemon."""

    root: Path

    @property
    def pipe(self) -> Path:
        """The directory of the daemon's sockets."""
        return self.root / "pipe"

    @property
    def log(self) -> Path:
        """The directory of the daemon's and its servers' logs."""
        return self.root / "log"

    @property
    def socket(self) -> Path:
        """The socket at which clients ask the daemon for a server."""
        return self.pipe / "control"

    @property
    def record(self) -> Path:
        """The file that names the running daemon."""
        return self.root / "daemon.json"

    def make(self) -> None:
        """Make the directories, for the agent's user alone. Raises OSError."""
        # Users pass through to their own group's directory; the names of the others tell them nothing.
        self.root.parent.mkdir(mode=0o711, exist_ok=True)
        self.root.parent.chmod(0o711)
        self.root.mkdir(mode=0o700, exist_ok=True)
        self.pipe.mkdir(mode=0o755, exist_ok=True)
        # The umask may have removed the right to pass through.
        self.pipe.chmod(0o755)
        self.log.mkdir(mode=0o755, exist_ok=True)

    def admit(self, users: Collection[int]) -> None:
        """Let these users, and no others, pass through to the sockets. Raises OSError."""
        others = sorted(uid for uid in users if uid not in (0, os.getuid()))
        if not others:
            _remove_list(self.root)
            self.root.chmod(0o700)
            return
        entries = [
            (_OWNER, 7, _NOBODY),
            *((_USER, _SEARCH, uid) for uid in others),
            (_GROUP, 0, _NOBODY),
            (_MASK, _SEARCH, _NOBODY),
            (_OTHER, 0, _NOBODY),
        ]
        os.setxattr(self.root, ACL, _VERSION + b"".join(_ENTRY.pack(*entry) for entry in entries))

    def remove_sockets(self) -> None:
        """Remove what a dead daemon left in the pipe directory: the next one would take it for a living one's."""
        for path in self.pipe.iterdir():
            path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove all of it."""
        shutil.rmtree(self.root, ignore_errors=True)


def places(directory: Path, group: TrustGroup) -> Places:
    """Return the group's places below the directory; they stay the same over restarts of the agent."""
    # A short name, as paths of sockets are short (agent/rundir.py); a tenant's name may have 63 characters.
    name = hashlib.sha256(f"{group.gpu_uuid}\n{group.tenant}".encode()).hexdigest()[:12]
    return Places(directory / name)


def write_fall(place: Places, code: str, words: str) -> None:
    """Record the last fall of the group for `read_fall`, as long as its daemon is wanted."""
    with contextlib.suppress(OSError):
        (place.root / "fall").write_text(f"{int(time.time())} {code} {words}", encoding="utf-8")


def read_fall(place: Places) -> tuple[int, str] | None:
    """Return the last fall of the group, in Unix seconds and words; None if there was none."""
    try:
        at, _, words = (place.root / "fall").read_text(encoding="utf-8").split(" ", 2)
        return int(at), words
    except (OSError, ValueError):
        return None


def has_socket(path: Path) -> bool:
    """Return whether there is a socket of this name."""
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


def _remove_list(path: Path) -> None:
    try:
        os.removexattr(path, ACL)
    except OSError:
        # There is none, or the file system has no such lists.
        return
