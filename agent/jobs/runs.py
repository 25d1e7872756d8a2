"""The runs of this node: begun once, admitted under their claims, watched, stopped, removed.

Level-triggered, like the node: each step compares the runs that the server wants with those on disk and does what is
next for each. A run begins by its order on disk, so that an agent that is killed at any moment finds it; whether its
program may have executed is said by the file that lets it (`RunDirectory.admit`). Before the first desired state,
nothing is begun and nothing removed.
"""

import asyncio
import os
import socket
import time
from collections.abc import Callable

from msgspec import UNSET, structs

from agent import statefile, wire
from agent.host import processes
from agent.host.gpus import Inventory
from agent.host.sampling import pause
from agent.jobs import bounds, containers, unit
from agent.jobs.containers import Containers
from agent.jobs.engine import EngineError
from agent.jobs.environments import environment_of, environment_of_container
from agent.jobs.fetching import Fetches
from agent.jobs.keeper import TASKS as OF_KEEPER
from agent.jobs.notebooks import NoNotebook, NotebookWatch, connect
from agent.jobs.run_directory import Order, Result, RunDirectory, group_of
from agent.jobs.sender import OutputSender
from agent.jobs.terminals import Admission, NoTerminal, Terminal
from agent.jobs.tunnels import Tunnels
from agent.launch import authorization
from agent.local_wire import Refusal
from agent.logs import log
from agent.node import UID_CHARACTERS, Node
from agent.server.outbox import Outbox
from agent.settings import Settings

# Between two looks for containers that have lost their keepers.
SWEEP_SECONDS = 30.0
BUSY_SECONDS, WATCH_SECONDS, IDLE_SECONDS = 0.05, 0.2, 5.0
# Between two looks for output: pieces come as fast as their rate allows.
SENDING_SECONDS = 0.02
# After the program's end, for what it has left behind.
LINGER_SECONDS = 5.0
# A keeper that ends before its program has executed is started again so often.
MAX_STARTS = 3
# What one user may have at a time, and each of its processes.
PROCESSES, OPEN_FILES = 1024, 4096
LOST_RECORD = "lost: this node has no record of the run, though it was started here"
OFF = "This node starts no programs of jobs: an operator sets GPUCLOUD_JOBS for its agent."


class Runs:
    """The runs of one node. The event loop's."""

    def __init__(
        self, node: Node, settings: Settings, outbox: Callable[[], Outbox], inventory: Callable[[], Inventory]
    ) -> None:
        self._node, self._settings, self._outbox, self._inventory = node, settings, outbox, inventory
        self._directories: dict[str, RunDirectory] = {}
        self._starts: dict[str, int] = {}
        self._states: dict[str, wire.JobState] = {}
        self._removals: dict[str, asyncio.Task[None]] = {}
        # Those whose removal has failed, and why: said once.
        self._left: dict[str, str] = {}
        # Those that have ended: their files say nothing new.
        self._ended: dict[str, wire.JobState] = {}
        engine = settings.jobs_engine
        self._containers = Containers(engine, settings.jobs_dir) if engine is not None else None
        self._fetches = Fetches(settings)
        self.sender = OutputSender()
        self.tunnels = Tunnels(self, settings.server)
        self._notebooks = NotebookWatch(self._directory)
        self.check_now = asyncio.Event()
        self._boot = processes.boot_id()
        # The stored desired state may be older than a start of which this node has lost the record.
        self._may_begin = False

    def take_order(self) -> None:
        """Follow a desired state that has just come from the server: only these begin runs."""
        self._may_begin = True
        self.check_now.set()

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self._watch())
            both.create_task(self._send())
            both.create_task(self._notebooks.run())
            if self._containers is not None:
                both.create_task(self._sweep(self._containers))

    async def _sweep(self, containers: Containers) -> None:
        """End, again and again, the containers of runs without a keeper."""
        while True:
            try:
                found = await asyncio.to_thread(containers.find)
                left = {uid for uid in found if not self._directory(uid).is_kept()}
                await asyncio.to_thread(containers.remove, left)
            except (EngineError, OSError) as error:
                log.warning("containers-not-checked", reason=str(error))
            await asyncio.sleep(SWEEP_SECONDS)

    async def _watch(self) -> None:
        while True:
            try:
                await self.step()
            except OSError as error:
                log.warning("runs-not-checked", reason=str(error))
            await pause(self.check_now, self._pause_seconds())

    async def _send(self) -> None:
        while True:
            if self.sender.has_piece():
                self._outbox().offer_output()
            await asyncio.sleep(SENDING_SECONDS if self.sender.is_active else WATCH_SECONDS)

    def add_to(self, observed: wire.Observed) -> wire.Observed:
        """Return the report with the states of the runs."""
        return structs.replace(observed, jobs=list(self._states.values())) if self._states else observed

    async def step(self) -> None:
        """Do what is next for each run."""
        desired = self._node.desired
        if desired is None:
            return
        runs = desired.jobs if isinstance(desired.jobs, list) else []
        wanted = {run.uid: run for run in runs}
        # 1. Find the runs on disk, end and remove those that nobody wants.
        for uid in self._find_on_disk() - wanted.keys():
            self._discard(uid)
        self._fetches.forget(wanted)
        # 2. Do what is next for each of the others.
        states = {uid: self._ended.get(uid) or await self._advance_safely(run) for uid, run in wanted.items()}
        # 3. Report what has changed; the length of the output is no news.
        news = {uid: _news_of(state) for uid, state in states.items()}
        is_news = news != {uid: _news_of(state) for uid, state in self._states.items()}
        self._states = states
        self.sender.know_runs({uid: (run, self._directory(uid)) for uid, run in wanted.items()})
        if is_news:
            self._outbox().mark_observed()

    def _find_on_disk(self) -> set[str]:
        root = self._settings.jobs_dir
        found = os.listdir(root) if root.is_dir() else []  # noqa: PTH208 - five times a second
        return {name for name in found if len(name) == 36 and UID_CHARACTERS.issuperset(name)}

    def _directory(self, uid: str) -> RunDirectory:
        return self._directories.setdefault(uid, RunDirectory(self._settings.jobs_dir / uid))

    def _discard(self, uid: str) -> None:
        """End a run that is not wanted any more, and remove it when it has ended."""
        directory, removal = self._directory(uid), self._removals.get(uid)
        if removal is not None and not removal.done():
            return
        if directory.is_kept():
            directory.stop()
            return
        # A million files take a while: the other runs do not wait for it.
        self._removals[uid] = asyncio.create_task(self._remove(uid, directory))

    async def _remove(self, uid: str, directory: RunDirectory) -> None:
        try:
            await asyncio.to_thread(directory.remove)
        except OSError as error:
            if self._left.get(uid) != str(error):
                self._left[uid] = str(error)
                log.warning("run-not-removed", run=uid, reason=str(error))
            # Somebody writes there still: not at once again.
            await asyncio.sleep(IDLE_SECONDS)
            return
        log.info("run-removed", run=uid)
        self._notebooks.forget(uid)
        for known in (self._directories, self._starts, self._ended, self._left, self._removals):
            known.pop(uid, None)

    async def _advance_safely(self, run: wire.JobRun) -> wire.JobState:
        try:
            return await self._advance(run)
        except (OSError, statefile.Damaged) as error:
            before = self._states.get(run.uid)
            if before is not None and before.state in ("running", "ended"):
                return before
            return wire.JobState(uid=run.uid, state="waiting", reason=f"This node cannot start it: {error}")

    async def _advance(self, run: wire.JobRun) -> wire.JobState:
        """Do what is next for a wanted run; return its state."""
        directory = self._directory(run.uid)
        if not directory.exists:
            return await self._begin(run, directory)
        result, admitted_at = directory.result(), directory.admitted_at()
        if result is None and not directory.is_kept():
            # The keeper may have written it in the last moment.
            result = directory.result()
            if result is None and admitted_at is None and not run.started:
                return await self._begin(run, directory)
            result = result or await self._lose(run.uid, directory)
        if result is not None:
            return self._end(run.uid, directory, result)
        if run.stop:
            directory.stop()
        if admitted_at is None:
            return await self._admit(run, directory)
        state = self._running(run.uid, directory, admitted_at)
        return structs.replace(state, idle_seconds=self._notebooks.follow(run)) if run.notebook else state

    def _running(self, uid: str, directory: RunDirectory, started_at: float) -> wire.JobState:
        return wire.JobState(
            uid=uid,
            state="running",
            started_at=started_at,
            output_bytes=directory.output_bytes(),
            dropped_bytes=directory.dropped_bytes(),
            image=directory.image() or UNSET,
        )

    def _end(self, uid: str, directory: RunDirectory, result: Result) -> wire.JobState:
        self._notebooks.forget(uid)
        log.info("run-ended", run=uid, exit_code=result.exit_code, reason=result.reason)
        self._ended[uid] = ended = wire.JobState(
            uid=uid,
            state="ended",
            exit_code=result.exit_code,
            reason=result.reason,
            started_at=result.started_at,
            ended_at=result.ended_at,
            output_bytes=directory.output_bytes(),
            dropped_bytes=result.dropped,
            image=directory.image() or UNSET,
        )
        return ended

    async def _lose(self, uid: str, directory: RunDirectory) -> Result:
        order = directory.order()
        if self._containers is not None and order is not None and order.container is not None:
            try:
                await asyncio.to_thread(self._containers.remove, [uid])
            except EngineError as error:
                log.warning("container-not-removed", run=uid, reason=str(error))
        if order is not None and order.boot != self._boot:
            return directory.give_up("lost: the machine was started again")
        return directory.give_up("lost: the process that kept it was killed")

    async def _begin(self, run: wire.JobRun, directory: RunDirectory) -> wire.JobState:
        """Begin the run if it can; return its state."""
        if run.started:
            return wire.JobState(uid=run.uid, state="ended", reason=LOST_RECORD)
        if run.stop:
            return wire.JobState(uid=run.uid, state="ended", reason="stopped")
        words = self._find_refusal(run, directory)
        if words is not None or self._settings.jobs is None:
            return wire.JobState(uid=run.uid, state="refused", reason=words or OFF)
        try:
            uid = self._settings.jobs.find(run.owner)
        except LookupError as error:
            words = f"This node has no user for the job's tenant: {error}; an operator makes the range larger."
            return wire.JobState(uid=run.uid, state="refused", reason=words)
        if not self._may_begin:
            return wire.JobState(uid=run.uid, state="waiting", reason="This node waits for its server's word.")
        refusal = authorization.find_job_obstacle(self._node, self._settings.library, run.claim_uid, uid)
        if refusal is not None:
            return wire.JobState(uid=run.uid, state="waiting", reason=refusal.detail)
        self._prepare()
        archive = self._fetches.take(run) if run.files is not None else None
        waiting = wire.JobState(uid=run.uid, state="waiting", reason=archive if isinstance(archive, str) else None)
        if not isinstance(archive, str):
            starter = self._find_starter(run, directory)
            # It waits for the disk.
            await asyncio.to_thread(directory.begin, self._order(run, uid, directory), archive, starter)
            self._starts[run.uid] = self._starts.get(run.uid, 0) + 1
            log.info("run-begun", run=run.uid, claim=run.claim_uid, uid=uid)
        return waiting

    def _find_refusal(self, run: wire.JobRun, directory: RunDirectory) -> str | None:
        if self._starts.get(run.uid, 0) >= MAX_STARTS:
            return f"The process that keeps it could not be started: {directory.keeper_words()}"
        return containers.find_obstacle(self._settings.jobs_engine, run.image, run.environment) if run.image else None

    def _prepare(self) -> None:
        """Make the directory of all runs: others may pass through it to their own, and not list it."""
        root = self._settings.jobs_dir
        root.mkdir(mode=0o711, parents=True, exist_ok=True)
        if root.stat().st_mode & 0o777 != 0o711:
            root.chmod(0o711)

    def _find_bounds(self, run: wire.JobRun) -> bounds.Bounds:
        desired, settings = self._node.desired, self._settings
        own = [one for one in desired.assignments if one.claim_uid == run.claim_uid] if desired else []
        gpu_bytes = {gpu.uuid: gpu.memory_bytes for gpu in self._inventory().gpus}
        return bounds.find_bounds(own, gpu_bytes, memory_mib=settings.jobs_memory_mib, disk_mib=settings.jobs_disk_mib)

    def _find_starter(self, run: wire.JobRun, directory: RunDirectory) -> list[str]:
        """Return the command that makes a unit of the keeper; none where systemd does not run."""
        systemd_run = unit.find_systemd_run()
        if systemd_run is None:
            return []
        places = unit.Places(directory.root, self._settings.run_dir, directory.keeper_log)
        return unit.command(
            *(systemd_run, group_of(run.uid), places, self._find_bounds(run)),
            most_processes=PROCESSES + OF_KEEPER,
            sandboxed=not run.image,
        )

    def _order(self, run: wire.JobRun, uid: int | None, directory: RunDirectory) -> Order:
        found = self._find_bounds(run)
        return Order(
            command=run.command,
            seconds=run.seconds,
            output_bytes=run.output_bytes,
            uid=uid,
            home=str(directory.home),
            tmp=str(directory.temporary),
            group=group_of(run.uid),
            memory_bytes=found.memory_bytes,
            disk_bytes=found.disk_bytes,
            cpu_weight=found.cpu_weight,
            processes=PROCESSES,
            files=OPEN_FILES,
            stop_seconds=self._settings.grace_seconds,
            linger_seconds=min(LINGER_SECONDS, self._settings.grace_seconds),
            boot=self._boot,
            container=self._containers.order(run.uid, run.image)
            if self._containers is not None and run.image
            else None,
            git={"url": run.git.url, "ref": run.git.ref} if run.git is not None else None,
        )

    async def _admit(self, run: wire.JobRun, directory: RunDirectory) -> wire.JobState:
        """Put a program that waits under its claim, and let it execute."""
        waiting, order = wire.JobState(uid=run.uid, state="waiting"), directory.order()
        process = directory.program()
        if process is None or order is None or run.stop or not processes.alive(process):
            return waiting
        if order.container is not None:
            return await self._admit_container(run, order, directory)
        answer = authorization.admit_job(
            self._node, self._settings.library, claim_uid=run.claim_uid, process=process, uid=order.uid
        )
        if isinstance(answer, Refusal):
            return structs.replace(waiting, reason=answer.detail)
        await asyncio.to_thread(directory.admit, environment_of(run, directory, answer))
        log.info("run-admitted", run=run.uid, claim=run.claim_uid, pid=process.pid)
        return self._running(run.uid, directory, directory.admitted_at() or time.time())

    async def _admit_container(self, run: wire.JobRun, order: Order, directory: RunDirectory) -> wire.JobState:
        """Let the engine start a container under its claim; its programs are known by their environment."""
        waiting, settings = wire.JobState(uid=run.uid, state="waiting"), self._settings
        if directory.image() is None:
            return structs.replace(waiting, reason=f"Image {run.image} is being pulled.")
        refusal = authorization.find_job_obstacle(self._node, settings.library, run.claim_uid, order.uid)
        if refusal is not None:
            return structs.replace(waiting, reason=refusal.detail)
        simulated = settings.library.simulated_node is not None
        assert settings.cdi_dir is not None
        access = containers.read_access(settings.cdi_dir, run.claim_uid, simulated=simulated)
        if access is None:
            return structs.replace(waiting, reason=f"The CDI spec of claim {run.claim_uid} is not written yet.")
        environment = environment_of_container(run, directory, access)
        await asyncio.to_thread(directory.admit, environment, access.options)
        log.info("run-admitted", run=run.uid, claim=run.claim_uid, image=directory.image())
        return self._running(run.uid, directory, directory.admitted_at() or time.time())

    def _find_running(self, uid: str) -> wire.JobRun | None:
        """Return the run, if it is wanted and runs."""
        runs = self._node.desired.jobs if self._node.desired is not None else UNSET
        run = next((run for run in runs or () if run.uid == uid and not run.stop), None)
        state = self._states.get(uid)
        return run if state is not None and state.state == "running" else None

    def owner_of(self, uid: str) -> int:
        """Return the number of the tenant of a running run; 0 if it does not run here."""
        run = self._find_running(uid)
        return 0 if run is None else run.owner

    def connect_notebook(self, uid: str) -> socket.socket:
        """Return a connection to a run's notebook. Raises NoNotebook, OSError."""
        run = self._find_running(uid)
        if run is None or not run.notebook:
            raise NoNotebook("The notebook does not run here: see the job's state.")
        return connect(self._directory(uid))

    async def open_terminal(self, uid: str, command: list[str], variables: dict[str, str]) -> Terminal:
        """Open a terminal with the command, or a shell, under a run's claim. Raises NoTerminal, OSError."""
        run, directory = self._find_running(uid), self._directory(uid)
        if run is None:
            raise NoTerminal("The run does not run here: see the job's state.")
        return await Terminal.open(directory, command, variables, Admission(self._node, self._settings.library, run))

    def _pause_seconds(self) -> float:
        states = {state.state for state in self._states.values() if state.reason is None or state.state == "running"}
        if "waiting" in states:
            return BUSY_SECONDS
        return WATCH_SECONDS if self._states or self._find_on_disk() else IDLE_SECONDS


def _news_of(state: wire.JobState) -> tuple[object, ...]:
    return state.state, state.exit_code, state.reason, state.image, state.idle_seconds
