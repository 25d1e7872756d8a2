"""One MPS control daemon: started, adopted, watched, restarted, ended.

A daemon serves one GPU and one trust group (mps_places.py). It starts an MPS server when the first client connects; the
server holds the clients' share of the GPU. What is relied on, and where NVIDIA says so, is in docs/backends.md.

Unlike the arbiter, a daemon outlives the agent: if it ended with it, every upgrade of the agent would take the GPU from
all clients. So it has a session of its own, a file names it, and the next agent adopts it. The GPU's compute mode is
never changed.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from agent.backoff import Backoff
from agent.host import processes
from agent.host.mps_logs import ServerLogs
from agent.host.mps_places import Places, TrustGroup, has_socket
from agent.host.processes import Process
from agent.logs import log

PROGRAM = "nvidia-cuda-mps-control"
# The kernel keeps 15 bytes of a command's name: of the control daemon and the server the same.
COMMAND = PROGRAM[:15]
LOOK_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 5.0
# A daemon that ran for this long worked: the next is started at once.
SETTLED_SECONDS = 10.0
# Before the socket is there, the daemon reads nothing but its environment.
READY_SECONDS = 10.0
QUIT_SECONDS = 5.0
STOP_SECONDS = 2.0
# Of a directory in memory; thousands of clients.
MOST_OUTPUT_BYTES = 4 << 20


class Fall(NamedTuple):
    """The end of a daemon or of a server, which its clients do not survive."""

    group: TrustGroup
    # In words: the end of which process, and how.
    words: str
    # True if the daemon itself ended: then nobody can start a program until the next one runs.
    is_daemon: bool
    # True if a client's kernel ended by a fatal fault: the server lives, its clients have lost the GPU.
    is_fault: bool = False


class MpsDaemon:
    """The control daemon of one group. `report` receives each end of it or of its server."""

    def __init__(
        self,
        group: TrustGroup,
        places: Places,
        *,
        program: str,
        environment: Mapping[str, str],
        report: Callable[[Fall], None],
    ) -> None:
        self.group = group
        self.places = places
        self._program = program
        self._environment = {
            **environment,
            "CUDA_VISIBLE_DEVICES": group.gpu_uuid,
            "CUDA_MPS_PIPE_DIRECTORY": str(places.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(places.log),
        }
        self._report = report
        # The pid of a daemon that this agent started; None: an earlier one did.
        self._logs = ServerLogs(places)
        self._child: int | None = None
        self._status: int | None = None
        self.process: Process | None = None
        # The servers of the daemon at the last look.
        self.servers: set[Process] = set()
        # Starts in a row that failed.
        self.failures = 0
        # The reason, in words, why no program can start under the group; None if one can.
        self.problem: str | None = "it is starting"

    @property
    def is_ready(self) -> bool:
        """True if a client can connect."""
        return self.process is not None and self.problem is None

    async def run(self) -> None:
        """Keep the daemon running until cancelled; it then runs on."""
        backoff = Backoff(LONGEST_PAUSE_SECONDS)
        while True:
            begun = time.monotonic()
            if self._adopt() or await self._start():
                self.problem, self.failures = None, 0
                await self._watch()
            else:
                self.failures += 1
            settled = time.monotonic() - begun >= SETTLED_SECONDS
            if settled:
                backoff.reset()
            pause = 0.0 if settled else backoff.next()
            log.warning("mps-daemon-ended", **self._names(), reason=self.problem, retry_seconds=round(pause, 2))
            await asyncio.sleep(pause)

    async def end(self) -> None:
        """End the daemon and its servers, and remove their directories. Clients do not survive it."""
        if self.process is not None and processes.alive(self.process):
            await asyncio.to_thread(self._ask_to_quit)
            for number in (signal.SIGTERM, signal.SIGKILL):
                if await self._has_ended(STOP_SECONDS):
                    break
                processes.send(self.process, number)
        self._forget()
        await self._end_servers()
        self.places.remove()
        log.info("mps-daemon-removed", **self._names())

    def _names(self) -> dict[str, str]:
        return {"gpu": self.group.gpu_uuid, "tenant": self.group.tenant}

    def _adopt(self) -> bool:
        """Go on with the daemon that an earlier agent started, if it lives; return whether it does."""
        found = find_running(self.places)
        if found is None or not has_socket(self.places.socket):
            return False
        self.process = found
        self.servers = find_servers(found)
        log.info("mps-daemon-adopted", **self._names(), pid=found.pid)
        return True

    async def _start(self) -> bool:
        """Start a daemon and wait until clients can connect; return False, with the problem, if it does not come."""
        self.problem = "it is starting"
        try:
            await self._end_servers()
            self.places.make()
            self.places.remove_sockets()
            self._child = await asyncio.to_thread(self._spawn)
        except OSError as error:
            self.problem = f"it cannot be started: {error}"
            return False
        self.process = processes.find(self._child)
        if self.process is not None:
            self._write_record(self.process)
        until = time.monotonic() + READY_SECONDS
        while not self._reap() and time.monotonic() < until:
            if has_socket(self.places.socket):
                log.info("mps-daemon-started", **self._names(), pid=self._child)
                return True
            await asyncio.sleep(0.02)
        self.problem = f"{self._how_it_ended()}{self._last_words()}"
        if self.process is not None:
            processes.send(self.process, signal.SIGKILL)
        self._forget()
        return False

    def _write_record(self, process: Process) -> None:
        temporary = self.places.record.with_suffix(".new")
        temporary.write_text(json.dumps({**self.group._asdict(), **process._asdict()}), encoding="utf-8")
        temporary.replace(self.places.record)

    def _spawn(self) -> int:
        # As root, for clients of all users: by default, a server serves the clients of one user, and those of another
        # wait until it has none left.
        options = ["-f", *(["-multiuser-server"] if os.getuid() == 0 else [])]
        write = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        files = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(self.places.log / "output"), write, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        # Not `subprocess`, which would wait for a process that is to run on.
        command = [self._program, *options]
        self._status = None
        return os.posix_spawn(self._program, command, self._environment, file_actions=files, setsid=True)

    def _reap(self) -> bool:
        """Return whether a daemon that this agent started has ended; a dead child is a zombie until it is asked."""
        if self._child is not None and self._status is None:
            try:
                pid, status = os.waitpid(self._child, os.WNOHANG)
            except ChildProcessError:
                pid, status = self._child, 0
            self._status = status if pid else None
        return self._status is not None

    async def _watch(self) -> None:
        """Watch the daemon and its servers until the daemon has ended."""
        self._logs.skip()
        while not await self._has_ended(0.0):
            assert self.process is not None
            if line := self._logs.find_fault():
                words = f"A program of {self.group.owner} on {self.group.gpu_uuid} had a fatal fault ({line})"
                self._report(Fall(self.group, words, is_daemon=False, is_fault=True))
            now = find_servers(self.process)
            for server in self.servers - now:
                words = f"The MPS server (process {server.pid}) of {self.group.owner} on {self.group.gpu_uuid}"
                self._report(Fall(self.group, f"{words} has ended", is_daemon=False))
            self.servers = now
            self._cut_output()
            await asyncio.sleep(LOOK_SECONDS)
        words = f"The MPS control daemon of {self.group.owner} on {self.group.gpu_uuid}"
        self.problem = self._how_it_ended()
        self._forget()
        # They would serve old clients, unknown to the next daemon: who shares a server would no longer be the rule.
        await self._end_servers()
        self._report(Fall(self.group, f"{words} ended: {self.problem}", is_daemon=True))

    def _cut_output(self) -> None:
        """Begin the log anew when it is long: a daemon in the foreground writes some lines for every client."""
        with contextlib.suppress(OSError):
            if (self.places.log / "output").stat().st_size > MOST_OUTPUT_BYTES:
                os.truncate(self.places.log / "output", 0)

    async def _has_ended(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while True:
            self._reap()
            if self.process is None or not processes.alive(self.process):
                return True
            if time.monotonic() >= until:
                return False
            await asyncio.sleep(0.05)

    async def _end_servers(self) -> None:
        """End the servers of an earlier daemon of this group."""
        left = await asyncio.to_thread(find_left, self.places.pipe)
        for one in left:
            processes.send(one, signal.SIGKILL)
        until = time.monotonic() + STOP_SECONDS
        while any(processes.alive(one) for one in left) and time.monotonic() < until:  # noqa: ASYNC110 - no child of ours may be among them
            await asyncio.sleep(0.02)
        self.servers = set()

    def _forget(self) -> None:
        self._reap()
        self._child = self.process = None
        self.places.record.unlink(missing_ok=True)

    def _ask_to_quit(self) -> None:
        try:
            subprocess.run(
                [self._program],
                env=self._environment,
                input=b"quit\n",
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=QUIT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            log.warning("mps-daemon-does-not-quit", **self._names(), reason=str(error))

    def _how_it_ended(self) -> str:
        if self._status is None:
            return "it has no socket yet" if self._child is not None else "it is gone"
        code = os.waitstatus_to_exitcode(self._status)
        return f"it ended with code {code}" if code >= 0 else f"it was ended by signal {-code}"

    def _last_words(self) -> str:
        try:
            lines = (self.places.log / "output").read_text(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return f" ({lines[-1][:300]})" if lines else ""


def find_running(places: Places) -> Process | None:
    """Return the daemon that the record names, if it lives."""
    record = _read_record(places.record)
    return record[1] if record is not None and processes.alive(record[1]) else None


def find_groups(directory: Path) -> dict[TrustGroup, Places]:
    """Return the groups whose daemons earlier agents left below the directory."""
    found = ((path, _read_record(path)) for path in directory.glob("*/daemon.json"))
    return {record[0]: Places(path.parent) for path, record in found if record is not None}


def _read_record(path: Path) -> tuple[TrustGroup, Process] | None:
    """Return what the file says; None if there is none, or nobody can read it."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        return TrustGroup(fields["gpu_uuid"], fields["tenant"]), Process(fields["pid"], fields["start_ticks"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def find_all(directory: Path) -> set[int]:
    """Return the pids of all daemons and servers below the directory."""
    return {one.pid for place in find_groups(directory).values() for one in find_left(place.pipe)}


def find_servers(daemon: Process) -> set[Process]:
    """Return the living servers that the daemon has started."""
    found = set()
    for pid in _children(daemon.pid):
        if _command(pid) == COMMAND and (process := processes.find(pid)) is not None:
            found.add(process)
    return found


def find_left(pipe: Path) -> set[Process]:
    """Return the daemons and servers that use this pipe directory."""
    setting = b"CUDA_MPS_PIPE_DIRECTORY=" + os.fsencode(pipe)
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or _command(int(entry.name)) != COMMAND:
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if setting in variables and (process := processes.find(int(entry.name))) is not None:
            found.add(process)
    return found


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    except OSError:
        return []


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").rstrip("\n")
    except OSError:
        return ""
