"""The keeper of a run in a container: the engine starts the program, the keeper bounds, ends and removes it.

Whatever the image says, the program is the tenant's user, without capabilities and ways to get more, on a root file
system that nobody can write to. Standard library only.

1. Find the image, or pull it. 2. Record its digest. 3. Wait for the agent, as every keeper does. 4. Run the image by
its id. 5. At the end, ask how the container ended, and remove it.
"""

import contextlib
import os
import re
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent.host import processes
from agent.host.processes import Process
from agent.jobs import descendants, engine, program, resource_group
from agent.jobs.disk_use import DiskWatch
from agent.jobs.engine import EngineError
from agent.jobs.files import IMAGE, ORDER, VARIABLES, write
from agent.jobs.keeper import TICK_SECONDS, Keeper

# A large image over a slow network; then the claim is of more use to others.
PULL_SECONDS = 900.0
END_SECONDS = 5.0
# Where an image may have a directory that the engine would make writable, on the machine's disk, for whoever runs it.
VOLUME = re.compile(r"(/[A-Za-z0-9._-]+)+/?")
SHARES_OF_WEIGHT = 10
NEAR_BYTES = 1 << 20
SIGKILL_CODE = 128 + signal.SIGKILL
SIGXFSZ_CODE = 128 + signal.SIGXFSZ


class ContainerKeeper(Keeper):
    """The container of one run."""

    def __init__(self, order: dict[str, Any]) -> None:
        facts = order["container"]
        self._engine: list[str] = [facts["engine"]]
        self._options: list[str] = facts["options"]
        self._image: str = facts["image"]
        self._name: str = facts["name"]
        self._label: str = facts["label"]
        self._found: dict[str, Any] = {}
        self._client: subprocess.Popen[bytes] | None = None
        self._state: dict[str, Any] | None = None
        # The container's first process, as the machine knows it; and the next look for it.
        self._first: int | None = None
        self._look_at, self._pause = 0.0, TICK_SECONDS
        self._group: Path | None = None
        self._kills = self._peak = 0
        super().__init__(order)

    def _fork(self) -> program.Started:
        """Start nothing yet: until the agent's word, the run's process is the keeper itself."""
        reading, self._writing = os.pipe()
        # Nothing stands between the engine and the command that could refuse it.
        return program.Started(os.getpid(), reading, -1, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def _watch_disk(self) -> DiskWatch:
        order = self._order
        return DiskWatch((order["home"], order["tmp"]), uid=None, most=order["disk_bytes"], find=self._find_programs)

    def _await_admission(self) -> dict[str, Any] | None:
        self._reason = self._find_image()
        return None if self._reason is not None else super()._await_admission()

    def _find_image(self) -> str | None:
        """Find the image on this machine, or pull it; return why it cannot be run."""
        found = engine.inspect(self._engine, "image", self._image)
        if found is None:
            if (words := self._pull()) is not None:
                return words
            found = engine.inspect(self._engine, "image", self._image)
        if found is None:
            return f"image {self._image}: the engine does not have it after its pull"
        odd = [path for path in _volumes(found) if not VOLUME.fullmatch(path)]
        if odd:
            return f"image {self._image} declares a volume at {odd[0]!r}: its path has characters that are not taken"
        self._found = found
        write(IMAGE, {"digest": _digest(found, self._image)})
        return None

    def _pull(self) -> str | None:
        """Pull the image, with its progress as output; return why that has failed."""
        client = engine.start(self._engine, "pull", self._image, output=self._writing)
        until = time.monotonic() + PULL_SECONDS
        reason = None
        while client.poll() is None and reason is None:
            time.sleep(TICK_SECONDS)
            self._read()
            if not Path(ORDER).exists():
                self._leave()
            if self._is_stopped():
                reason = "stopped"
            elif time.monotonic() > until:
                reason = f"image {self._image} was not pulled within {PULL_SECONDS:.0f} s"
        if reason is not None:
            client.kill()
            client.wait()
        self._read()
        if reason is None and client.returncode:
            reason = f"image {self._image} could not be pulled: the output says why"
        return reason

    def _execute(self, admitted: dict[str, Any]) -> None:
        descriptor = os.open(VARIABLES, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.writelines(f"{name}={value}\n" for name, value in admitted["environment"].items())
        self._client = engine.start(
            self._engine, "run", *self._options, *self._bounds(), *admitted["options"], *self._places(),
            self._found["Id"], *self._order["command"],
            output=self._writing,
        )  # fmt: skip
        os.close(self._writing)
        self._pid = self._client.pid

    def _bounds(self) -> Iterator[str]:
        """Yield the options that bound the container, after an operator's own."""
        order, uid = self._order, self._order["uid"]
        memory = order["memory_bytes"]
        yield from (f"--name={self._name}", f"--label={engine.LABEL}={self._label}")
        # The number alone would add the groups that the image gives it.
        yield from (f"--user={uid}:{uid}", "--cap-drop=all", "--security-opt=no-new-privileges")
        yield from ("--read-only", f"--pids-limit={order['processes']}")
        yield from (f"--memory={memory}", f"--memory-swap={memory}", f"--shm-size={memory // 2}")
        yield f"--cpu-shares={max(2, order['cpu_weight'] * SHARES_OF_WEIGHT)}"
        bounds = {
            "core": (resource.RLIMIT_CORE, 0),
            "nproc": (resource.RLIMIT_NPROC, order["processes"]),
            "nofile": (resource.RLIMIT_NOFILE, order["files"]),
            "fsize": (resource.RLIMIT_FSIZE, order["disk_bytes"]),
        }
        for name, (kind, bound) in bounds.items():
            hard = resource.getrlimit(kind)[1]
            least = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
            yield f"--ulimit={name}={least}:{least}"
        # Output goes through the keeper, which bounds it; an engine's log would fill the disk.
        yield from (
            "--log-driver=none",
            "--no-healthcheck",
            "--entrypoint=",
            f"--env-file={Path(VARIABLES).absolute()}",
        )
        if "podman" in Path(self._engine[0]).name:
            # It would let a command named `systemd` write to control groups.
            yield "--systemd=false"

    def _places(self) -> Iterator[str]:
        """Yield the options for the directories that the program may write to."""
        home, temporary = self._order["home"], self._order["tmp"]
        yield from (f"--workdir={home}", f"--mount=type=bind,src={home},dst={home}")
        yield from (f"--mount=type=bind,src={temporary},dst={path}" for path in ("/tmp", "/var/tmp"))  # noqa: S108
        # In memory, which is bounded: else they would be directories of the machine that nobody measures.
        yield from (f"--tmpfs={path}" for path in _volumes(self._found) if path.rstrip("/") not in ("/tmp", "/var/tmp"))  # noqa: S108

    def _find_bound(self, code: int | None) -> str | None:
        state = self._state or {}
        memory = self._order["memory_bytes"]
        if code and (self._kills or state.get("OOMKilled")):
            return f"host memory: the kernel ended a process at {memory >> 20:,} MiB"
        if code == SIGKILL_CODE and self._peak > memory - NEAR_BYTES:
            # Not every engine tells; of the first process, nobody else is left to.
            return f"host memory: it was ended by SIGKILL when it had {self._peak >> 20:,} of {memory >> 20:,} MiB"
        if code == SIGXFSZ_CODE:
            return f"disk: a file of more than {self._order['disk_bytes'] >> 20:,} MiB"
        if code is not None and code < 0:
            return f"the engine's client was ended by signal {-code}"
        if code == 125 and state.get("Status") in (None, "created", "configured", "initialized"):
            return "the engine could not start the container: the output says why"
        return None

    def _signal_all(self, number: signal.Signals) -> None:
        if self._status is None:
            with contextlib.suppress(EngineError):
                engine.call(self._engine, "kill", "--signal", str(int(number)), self._name)

    def _end_descendants(self) -> None:
        """End and remove the container, then all that the engine has started for it."""
        if self._client is not None and self._state is None:
            self._end_container()
        super()._end_descendants()

    def _end_container(self) -> None:
        found = engine.inspect(self._engine, "container", self._name)
        if found is not None and found["State"].get("Running"):
            if self._status is not None and self._reason is None:
                self._reason = "lost: the engine's part that kept its container was killed"
            with contextlib.suppress(EngineError):
                engine.call(self._engine, "kill", "--signal", "KILL", self._name)
            # The engine's client tells the exit code, and the rest of the output.
            until = time.monotonic() + END_SECONDS
            while self._status is None and time.monotonic() < until:
                time.sleep(TICK_SECONDS)
                self._read()
                self._reap()
            found = engine.inspect(self._engine, "container", self._name)
        self._state = found["State"] if found is not None else {}
        with contextlib.suppress(EngineError):
            # What stays, the agent removes later.
            engine.remove(self._engine, self._name)

    def _find_programs(self) -> set[Process]:
        """Return the container's processes: an engine with a daemon has them below that, not below the keeper."""
        found, first = descendants.find(), self._first
        if first is not None and (space := _namespace(first)) is not None:
            inside = (pid for pid in descendants.pids() if _namespace(pid) == space)
            found |= {process for pid in inside if (process := processes.find(pid)) is not None}
        return found

    def _reap(self) -> None:
        """Reap, and read meanwhile what the container's control group tells: it is gone with its last process."""
        if self._client is not None and self._status is None:
            self._look_at_memory()
        super()._reap()

    def _look_at_memory(self) -> None:
        now = time.monotonic()
        if self._first is None and now >= self._look_at:
            container = engine.inspect(self._engine, "container", self._name)
            self._first = (container["State"].get("Pid") or None) if container is not None else None
            self._pause = min(2 * self._pause, END_SECONDS)
            self._look_at = now + self._pause
            if self._first is not None:
                self._group = resource_group.find_own(self._first).get("memory")
        if self._group is not None:
            # It is there for a moment after its last process.
            self._kills = max(self._kills, resource_group.count_oom_kills(self._group))
            self._peak = max(self._peak, resource_group.read_peak(self._group))


def _namespace(pid: int) -> str | None:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return None


def _volumes(image: dict[str, Any]) -> list[str]:
    return sorted((image.get("Config") or {}).get("Volumes") or {})


def _digest(image: dict[str, Any], name: str) -> str:
    """Return the image's digest in its registry; its id if it is of none."""
    repository = re.sub(r"(:[^/:@]*)?(@.*)?\Z", "", name)
    digests = [one for one in image.get("RepoDigests") or () if one.startswith(f"{repository}@")]
    return digests[0] if digests else f"{repository}@sha256:{image['Id'].removeprefix('sha256:')}"
