"""One run on disk: its directory, its keeper, and what both say about it.

`<jobs>/<run uid>/` belongs to the agent and cannot be listed by others. Its files are those of `agent.jobs.files`;
`home/` and `tmp/` in it belong to the user as which the program runs.
"""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from agent import statefile, wire
from agent.host import processes
from agent.host.processes import Process
from agent.jobs import files, removal, resource_group

# The directory that holds the package `agent`.
CODE = Path(__file__).resolve().parents[2]
ENVIRONMENT = {"PYTHONPATH": str(CODE), "PYTHONDONTWRITEBYTECODE": "1"}
# A unit's first process takes the lock a moment after systemd-run has ended.
UNIT_SECONDS = 5.0
KEEPER_LOG_BYTES = 1000


class Container(msgspec.Struct, frozen=True):
    """The container in which a program runs."""

    engine: str
    options: list[str]
    image: str
    name: str
    # The directory of all runs, as a label: several agents may share an engine.
    label: str


class Order(msgspec.Struct, frozen=True):
    """The order to a keeper."""

    command: list[str]
    seconds: int
    output_bytes: int
    # None: the keeper's own.
    uid: int | None
    home: str
    tmp: str
    # The name of the control group that the keeper makes where systemd has not made one.
    group: str
    memory_bytes: int
    disk_bytes: int
    cpu_weight: int
    # The most processes and threads of its user, and open files of each process.
    processes: int
    files: int
    # Between SIGTERM and SIGKILL, and for what the program has left behind.
    stop_seconds: float
    linger_seconds: float
    # The machine's present start.
    boot: str
    # None: the program is one of this machine's.
    container: Container | None = None
    # The repository to clone: url and ref.
    git: dict[str, str] | None = None


class Admitted(msgspec.Struct, frozen=True):
    """The program may execute."""

    environment: dict[str, str]
    at: float
    # Of the engine's command, for what the claim needs in a container.
    options: list[str] = []


class Image(msgspec.Struct, frozen=True):
    """The image of a run."""

    digest: str


class Result(msgspec.Struct, frozen=True):
    """The end of the run."""

    exit_code: int | None
    reason: str | None
    started_at: float | None
    ended_at: float
    dropped: int = 0


def group_of(uid: str) -> str:
    """Return the name of a run's control group, or of its unit."""
    return f"run-{uid}"


class RunDirectory:
    """The directory of one run. All methods may raise OSError, and statefile.Damaged where they read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home, self.temporary, self.output = root / "home", root / "tmp", root / files.OUTPUT
        self.keeper_log = root / "keeper.log"
        self._keeper: subprocess.Popen[bytes] | None = None
        self._admitted_at: float | None = None
        self._started_at: float | None = None
        self._image: str | None = None

    @property
    def exists(self) -> bool:
        """True if the run has begun; half of a directory is none."""
        return (self.root / files.ORDER).exists()

    def begin(self, order: Order, archive: Path | None = None, starter: Sequence[str] = ()) -> None:
        """Write the order to disk, and start the keeper by the command `starter`, which makes a unit of it.

        The archive stays where it is, too: a run may begin again.
        """
        self.remove()
        self.root.mkdir(mode=0o700)
        if archive is not None:
            os.link(archive, self.root / files.FILES)
        for directory in (self.home, self.temporary):
            directory.mkdir(mode=0o700)
            if order.uid is not None:
                os.chown(directory, order.uid, order.uid)
        # Others may pass through, and not list it.
        self.root.chmod(0o711)
        statefile.write(self.root / files.ORDER, order, durable=True)
        self._start_keeper(starter)

    def _start_keeper(self, starter: Sequence[str]) -> None:
        keeper = [sys.executable, "-S", "-P", "-m", "agent.jobs.keeper", str(self.root)]
        self._started_at = time.monotonic() if starter else None
        with self.keeper_log.open("wb") as log:
            self._keeper = subprocess.Popen(
                [*starter, *keeper],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=ENVIRONMENT,
                start_new_session=True,
            )

    def is_kept(self) -> bool:
        """Return whether a keeper lives."""
        if self._keeper is not None and self._keeper.poll() is None:
            # One that has just been started may not have the lock yet. If another one has it, that of an agent which
            # was killed a moment ago, this one ends.
            return True
        if self._is_starting():
            return True
        try:
            lock = os.open(self.root / files.LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def _is_starting(self) -> bool:
        """Return whether the keeper's unit has begun, and the keeper has not written anything yet."""
        if self._keeper is None or self._started_at is None or self._keeper.returncode != 0:
            return False
        is_early = time.monotonic() - self._started_at < UNIT_SECONDS
        return is_early and not any((self.root / name).exists() for name in (files.PROGRAM, files.RESULT))

    def program(self) -> Process | None:
        """Return the program's first process; None before it was forked."""
        return statefile.read(self.root / files.PROGRAM, Process)

    def order(self) -> Order | None:
        """Return the order; None if there is none."""
        return statefile.read(self.root / files.ORDER, Order)

    def admit(self, environment: dict[str, str], options: Sequence[str] = ()) -> None:
        """Let the program execute, with this environment, and in a container with these options."""
        admitted = Admitted(environment=environment, at=time.time(), options=list(options))
        statefile.write(self.root / files.ADMITTED, admitted, durable=True)

    def admitted_at(self) -> float | None:
        """Return when the program was let execute; None if it was not."""
        if self._admitted_at is None:
            found = statefile.read(self.root / files.ADMITTED, Admitted)
            self._admitted_at = found.at if found is not None else None
        return self._admitted_at

    def stop(self) -> None:
        """Have the keeper end the program."""
        (self.root / files.STOP).touch()

    def image(self) -> str | None:
        """Return the image that its container runs, by its digest; None if there is none, or it is not known yet."""
        if self._image is None:
            found = statefile.read(self.root / files.IMAGE, Image)
            self._image = found.digest if found is not None else None
        return self._image

    def result(self) -> Result | None:
        """Return how it ended; None if it has not."""
        return statefile.read(self.root / files.RESULT, Result)

    def give_up(self, reason: str) -> Result:
        """Record the end of a run whose keeper is gone, and end what is left of its program."""
        with contextlib.suppress(statefile.Damaged):
            if (program := self.program()) is not None:
                processes.send(program, signal.SIGKILL)
        result = Result(None, reason, self.admitted_at(), time.time(), self.dropped_bytes())
        statefile.write(self.root / files.RESULT, result, durable=True)
        return result

    def output_bytes(self) -> int:
        """Return the length of the kept output so far."""
        try:
            return self.output.stat().st_size
        except FileNotFoundError:
            return 0

    def dropped_bytes(self) -> int:
        """Return how much output was not kept so far."""
        return statefile.read(self.root / files.DROPPED, int) or 0

    def keeper_words(self) -> str:
        """Return the last words of a keeper that failed."""
        try:
            return self.keeper_log.read_bytes()[-KEEPER_LOG_BYTES:].decode(errors="replace").strip()
        except OSError:
            return ""

    def read_output(self, offset: int) -> bytes:
        """Return the next piece of the kept output."""
        try:
            descriptor = os.open(self.output, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return b""
        try:
            return os.pread(descriptor, wire.MAX_CHUNK_BYTES, offset)
        finally:
            os.close(descriptor)

    def remove(self) -> None:
        """Remove it with everything in it."""
        removal.remove_tree(self.root)
        resource_group.remove(group_of(self.root.name))
        self._keeper = self._admitted_at = self._image = None
