"""The run directory: pages, sockets and the lock of one agent, on a tmpfs, gone after a reboot.

<run dir>/agent.lock            locked (flock) by the running agent
<run dir>/arbiter.lock          locked by the arbiter
<run dir>/agent.sock            `agent exec` and `agent status` ask here
<run dir>/processes.json        the registered processes by claim
<run dir>/suspensions.json      the suspended claims, and those on the way there or back
<run dir>/instances.json        the MIG instances that this agent made, or was about to make
<run dir>/heartbeat             touched by the agent's loop; its age says when the agent last moved
<run dir>/mps/<group>/          sockets and logs of an MPS control daemon (agent/host/mps_places.py)
<run dir>/kernel-limits.json    the control groups with a memory limit in the kernel
<run dir>/claims/<claim uid>/   the claim's pages, its `env` file and its group's `group.json`; mounted into containers
<run dir>/container/            small files that every container of a claim gets
<run dir>/cdi/                  CDI specs, if they are not in /var/run/cdi
"""

import contextlib
import fcntl
import hashlib
import os
import stat
from pathlib import Path
from typing import NamedTuple

# sockaddr_un.sun_path holds 108 bytes with its final zero.
MAX_SOCKET_PATH_BYTES = 107
# The machine's own agent, as root.
SYSTEM = Path("/run/gpucloud")


class RunDirError(Exception):
    """Unusable run directory; the message says why and what to set."""


def default(state_dir: Path) -> Path:
    """Return the run directory of an agent with this state directory, unless GPUCLOUD_RUN_DIR names another."""
    if os.getuid() == 0:
        return SYSTEM
    digest = hashlib.sha256(os.fsencode(state_dir.absolute())).hexdigest()[:12]
    # `take` refuses a directory that someone else has prepared there.
    return Path(f"/dev/shm/gpucloud-{os.getuid()}-{digest}")  # noqa: S108


class Journals(NamedTuple):
    """The files that remember suspensions and MIG instances; None: they are not remembered."""

    suspensions: Path | None = None
    instances: Path | None = None


NO_JOURNALS = Journals()


class RunDir:
    """One agent's run directory; made, checked and locked by `take()`."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.claims = self.root / "claims"
        self.socket = self.root / "agent.sock"
        self.processes = self.root / "processes.json"
        self.journals = Journals(self.root / "suspensions.json", self.root / "instances.json")
        self.container = self.root / "container"
        self.heartbeat = self.root / "heartbeat"
        self._lock: int | None = None

    def take(self) -> None:
        """Make the directory ours and lock it until this process ends. Raises RunDirError."""
        self.check_socket_path()
        try:
            self.root.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._check_owner()
            # Tenants pass through to their own claim's directory; they need not list the others'.
            self.claims.mkdir(mode=0o711, exist_ok=True)
            # The umask may have removed the right to pass through.
            self.root.chmod(0o755)
            self.claims.chmod(0o711)
            lock = os.open(self.root / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise RunDirError(f"The run directory cannot be made: {error}. GPUCLOUD_RUN_DIR names another.") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise RunDirError(
                f"Another agent runs in {self.root}. Stop it, or give this one its own GPUCLOUD_RUN_DIR."
            ) from None
        self._lock = lock

    def beat(self) -> None:
        """Touch the heartbeat, which the chart's probe compares with the clock (`deploy/docker/alive.sh`)."""
        with contextlib.suppress(OSError):
            self.heartbeat.touch()

    def check_socket_path(self) -> None:
        """Check that the kernel can bind the socket's path. Raises RunDirError."""
        length = len(os.fsencode(self.socket))
        if length > MAX_SOCKET_PATH_BYTES:
            raise RunDirError(
                f"{self.socket} has {length} bytes; a socket's path may have {MAX_SOCKET_PATH_BYTES}. "
                "Set GPUCLOUD_RUN_DIR to a shorter one."
            )

    def _check_owner(self) -> None:
        # /dev/shm is everyone's: a directory prepared by someone else must not become ours.
        facts = os.lstat(self.root)
        if not stat.S_ISDIR(facts.st_mode):
            raise RunDirError(f"{self.root} is not a directory.")
        if facts.st_uid != os.getuid() or facts.st_mode & 0o022:
            raise RunDirError(
                f"{self.root} belongs to uid {facts.st_uid} with mode {stat.S_IMODE(facts.st_mode):o}; "
                f"it must belong to uid {os.getuid()} and be writable by nobody else."
            )
