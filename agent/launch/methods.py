"""The files by which programs start without asking the agent: each claim's environment file and CDI spec.

They are reconciled with the claims like everything here: a deleted file is written again, a killed agent's file is
removed. A claim that is being released or is suspended has none, so that nothing new starts under it.
"""

import asyncio
import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from agent import statefile
from agent.claims.claim import ClaimRuntime
from agent.launch import cdi, environment
from agent.logs import log
from agent.node import Node
from agent.rundir import RunDir
from agent.settings import Settings

# Everyone may read how a program starts under a claim; only the owner of the usage page can do so.
MODE = 0o644


class _Written(NamedTuple):
    """A file as it was written; another inode is another file."""

    content: bytes
    inode: int


class _Device(NamedTuple):
    """The driver's numbers of a GPU, and of the parts of it that are a MIG device."""

    minor: int
    gpu_instance: int | None = None
    compute_instance: int | None = None

    @property
    def capabilities(self) -> list[str]:
        """The device nodes of a MIG device beside its GPU's."""
        if self.gpu_instance is None or self.compute_instance is None:
            return []
        return cdi.capability_nodes(self.minor, self.gpu_instance, self.compute_instance)


class _Made(NamedTuple):
    """The files of one claim, and their inputs."""

    gpus: tuple[str, ...]
    devices: tuple[_Device, ...]
    name: str | None
    mps: Mapping[str, str]
    files: dict[Path, bytes]


class LaunchMethods:
    """The files of one node's claims. `report` receives the text about files that could not be written, once."""

    def __init__(self, settings: Settings, run_dir: RunDir, *, report: Callable[[str], None]) -> None:
        self._library = settings.library
        self._run_dir = run_dir
        self._cdi_dir = settings.cdi_dir
        self._report = report
        self._made: dict[str, _Made] = {}
        self._written: dict[Path, _Written] = {}
        # The reason, in words, why files are not as they should be.
        self.problem: str | None = None
        # The name under which a container runtime knows the claim's device beside its uid.
        self._names: dict[str, str] = {}
        self._swept = False
        # Set when the files or their problem change, and replaced by the next one; the time of that, monotonic.
        self.changed = asyncio.Event()
        self.changed_at = float("-inf")

    def name(self, claim_uid: str, name: str) -> None:
        """Give the claim's device this name from the next `keep` on, and remove it from any other claim."""
        self._names = {uid: other for uid, other in self._names.items() if other != name} | {claim_uid: name}

    def keep(self, node: Node, minors: Mapping[str, int]) -> None:
        """Make the files match the node's claims. `minors`: the driver's number of each GPU. Raises nothing."""
        problems: list[str] = []
        names = environment.gpu_names(node)
        wanted: dict[Path, bytes] = {}
        made: dict[str, _Made] = {}
        self._names = {uid: name for uid, name in self._names.items() if uid in node.runtimes}
        for uid, runtime in node.runtimes.items():
            gpus = environment.gpus(runtime, names)
            if runtime.ending_since is not None or not gpus or runtime.lost or node.suspensions.is_held(uid):
                continue
            if node.mps is not None and node.mps.obstacle(uid) is not None:
                continue
            try:
                made[uid] = self._build_files(node, runtime, gpus, _devices(node, gpus, minors))
                wanted |= made[uid].files
            except environment.NotPlain as error:
                problems.append(f"{error}.")
        before, self._made = self._made, made
        if wanted and not self._library.path.is_file():
            # ld.so would only warn, and the program would run without limits.
            problems.append(f"The library that enforces limits is not at {self._library.path}.")
            wanted = {}
        elif wanted:
            wanted |= self._shared_files()
        problems += self._match(wanted, node.runtimes)
        problem = problems[0] if problems else None
        if problem is not None and problem != self.problem:
            log.warning("ways-not-written", reason=problem)
            self._report(f"Containers and units cannot be started under claims: {problem}")
        changed = made != before or problem != self.problem
        self.problem = problem
        if changed:
            self.changed_at = time.monotonic()
            self.changed.set()
            self.changed = asyncio.Event()

    def is_kept(self, claim_uid: str) -> bool:
        """Return whether the claim's files are there as they were written."""
        made = self._made.get(claim_uid)
        return made is not None and all(
            path in self._written and _inode(path) == self._written[path].inode
            for path in (*made.files, *self._shared_files())
        )

    def _match(self, wanted: Mapping[Path, bytes], claims: Iterable[str]) -> list[str]:
        """Write and remove files; return the failures in words."""
        problems = []
        try:
            self._sweep(set(claims))
        except OSError as error:
            problems.append(f"{error}.")
        for path in set(self._written) - set(wanted):
            try:
                path.unlink(missing_ok=True)
                del self._written[path]
            except OSError as error:
                problems.append(f"{error}.")
        for path, content in wanted.items():
            try:
                self._put(path, content)
            except OSError as error:
                problems.append(f"{error}.")
        return problems

    def _put(self, path: Path, content: bytes) -> None:
        written = self._written.get(path)
        if written is not None and written.content == content and _inode(path) == written.inode:
            return
        if path.parent in (self._cdi_dir, self._run_dir.container):
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        # A file that an earlier agent wrote stays: a container may have it mounted.
        if not _is_current(path, content):
            statefile.replace(path, content, mode=MODE)
        self._written[path] = _Written(content, _inode(path))

    def _build_files(self, node: Node, runtime: ClaimRuntime, gpus: list[str], devices: tuple[_Device, ...]) -> _Made:
        known = self._made.get(runtime.claim_uid)
        name = self._names.get(runtime.claim_uid)
        mps = environment.mps_variables(node, runtime)
        if known is not None and known[:4] == (tuple(gpus), devices, name, mps):
            return known
        values = environment.variables(runtime, self._library, environment.gpu_names(node), mps)
        files = {runtime.directory / "env": environment.file_text(values).encode()}
        if self._cdi_dir is not None:
            made = cdi.spec(
                values,
                directory=runtime.directory,
                files=self._run_dir.container,
                library=self._library,
                devices=[
                    *cdi.device_nodes(sorted({device.minor for device in devices})),
                    *(path for device in devices for path in device.capabilities),
                ],
                names=[name] if name is not None else [],
            )
            files[self._cdi_dir / cdi.file_name(runtime.claim_uid)] = msgspec.json.encode(made) + b"\n"
        return _Made(tuple(gpus), devices, name, mps, files)

    def _shared_files(self) -> dict[Path, bytes]:
        preload = f"{self._library.path}\n".encode()
        return {self._run_dir.container / cdi.PRELOAD_FILE: preload, self._run_dir.container / cdi.REQUIRE_FILE: b""}

    def _sweep(self, claims: set[str]) -> None:
        """Remove, once, the specs that a killed agent left of claims that are no longer on this node."""
        if self._swept or self._cdi_dir is None:
            return
        for path in self._cdi_dir.glob(f"{cdi.FILE_PREFIX}*.json"):
            try:
                claim = cdi.mounted_claim(msgspec.json.decode(path.read_bytes()), self._run_dir.claims)
            except (OSError, msgspec.DecodeError, UnicodeError):
                continue
            if claim is not None and claim not in claims:
                path.unlink(missing_ok=True)
        self._swept = True


def _devices(node: Node, gpus: Iterable[str], minors: Mapping[str, int]) -> tuple[_Device, ...]:
    """Return the driver's numbers of these GPUs and MIG devices, as far as it has any."""
    found = []
    made = {record.device: record for record in node.instances.records.values()}
    for gpu in gpus:
        if (record := made.get(gpu)) is not None and record.gpu_uuid in minors:
            found.append(_Device(minors[record.gpu_uuid], record.gpu_instance, record.compute_instance))
        elif gpu in minors:
            found.append(_Device(minors[gpu]))
    return tuple(found)


def _is_current(path: Path, content: bytes) -> bool:
    """Return whether the file is there as this agent would write it: content, owner, and nobody else's to write."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        found = os.fstat(descriptor)
        plain = stat.S_ISREG(found.st_mode) and stat.S_IMODE(found.st_mode) == MODE and found.st_nlink == 1
        if not plain or found.st_uid != os.geteuid() or found.st_size != len(content):
            return False
        return os.pread(descriptor, len(content) + 1, 0) == content
    finally:
        os.close(descriptor)


def _inode(path: Path) -> int:
    try:
        return os.lstat(path).st_ino
    except FileNotFoundError:
        return 0
