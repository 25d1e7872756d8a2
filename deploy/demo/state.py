"""Contents of $DEMO_DIR, and its permissions."""

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from deploy.embedded.places import private_directory

# In an agent's run directory: the MIG instances that it made (`agent/rundir.py`).
INSTANCES = "instances.json"
MEMORY = Path("/dev/shm")  # noqa: S108 - a directory of our own is made in it, closed to others


class InUse(Exception):
    """Another launcher uses this directory."""


@dataclass(frozen=True)
class State:
    """One installation's directory.

    operator.token, operator.password   the operator's API token and page login (0600)
    secret.key                          the server's SECRET_KEY (0600)
    pids.json                           who runs now; gone when nothing does
    postgres/, run/                     the database; sockets
    nodes/<name>/                       an agent's identity and, simulated, its virtual node
    nodes/<name>/enrol.token            a one-time token for an agent that is not enrolled yet
    logs/                               one file per program
    """

    root: Path

    @classmethod
    def at(cls, path: Path) -> "State":
        """Return the state in this directory, creating it if needed."""
        root = private_directory(path.resolve())
        for name in ("logs", "nodes"):
            private_directory(root / name)
        return cls(root)

    def log(self, name: str) -> Path:
        return self.root / "logs" / f"{name}.log"

    def node(self, name: str) -> Path:
        return private_directory(self.root / "nodes" / name)

    @property
    def pids(self) -> Path:
        return self.root / "pids.json"

    def enrol_token(self, name: str) -> str | None:
        """Return the agent's one-time token if it has one."""
        return self._text(f"nodes/{name}/enrol.token")

    def password(self, name: str) -> str | None:
        return self._text(f"{name}.password")

    def _text(self, name: str) -> str | None:
        try:
            return (self.root / name).read_text().strip()
        except FileNotFoundError:
            return None

    def secret_key(self) -> str:
        """Return the secret key, the same at every start, so that sessions survive a restart."""
        path = self.root / "secret.key"
        if not path.exists():
            fresh = path.with_suffix(".new")
            fresh.touch(mode=0o600)
            fresh.write_text(secrets.token_urlsafe(48) + "\n")
            fresh.replace(path)
        return path.read_text().strip()

    def run_directory(self, node: str) -> Path:
        """Return the agent's run directory, in memory: a limits page on a disk would wait for its writes.

        Its name is short (sockets) and derived from the state's path, so that a second start finds it again.
        """
        return self._runs() / node

    def _runs(self) -> Path:
        parent = MEMORY if os.access(MEMORY, os.W_OK) else Path(tempfile.gettempdir())
        return private_directory(parent / f"gpucloud-demo-{os.geteuid()}-{self._short_name()}")

    def _short_name(self) -> str:
        about = self.root.stat()
        return f"{about.st_dev:x}-{about.st_ino:x}"

    def clear_runs(self) -> None:
        """Remove the run directories, as a reboot does; call it while nothing runs.

        Programs of jobs outlive their agents. They end when the directories of their runs are gone. A reboot removes
        MIG instances, too, but the simulated driver's nodes outlive this: so does the record of who made them.
        """
        for place in (*self._runs().glob("*"), *self.root.glob("nodes/*-jobs")):
            record = place / INSTANCES
            kept = record.read_bytes() if record.is_file() else None
            shutil.rmtree(place, ignore_errors=True)
            if kept is not None:
                private_directory(place)
                record.write_bytes(kept)
        with contextlib.suppress(OSError):  # not empty
            self._runs().rmdir()

    def lock(self) -> int:
        """Lock the directory for this process.

        Raises InUse.
        """
        descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise InUse(f"another demo runs in {self.root}; stop it, or set DEMO_DIR") from None
        return descriptor
