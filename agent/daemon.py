"""The running agent: its parts, and the loops that drive them.

The link keeps the connection and applies what it receives. The watch loop checks the claims' processes, more often
while some are to end. Samples are taken once a second, the audit checks the GPUs' processes, the arbiter is kept
running. A stuck driver call can hold up samples and audit only: NVML has a thread of its own.
"""

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import msgspec
from msgspec import structs

from agent import VERSION, hello, metrics, statefile, wire
from agent.backoff import Backoff
from agent.check.running import SelfCheck
from agent.claims import audit, auditor
from agent.claims.abi import PagesLibrary
from agent.claims.failures import ClaimFailures, describe_processes
from agent.claims.registry import Registry
from agent.drift import Drifts
from agent.health_reports import HealthReports
from agent.host import cgroups, checkup
from agent.host.arbiter import Arbiter
from agent.host.checkup import CheckupInputs
from agent.host.exits import ExitWatcher
from agent.host.gpus import Inventory, Nvml
from agent.host.sampling import pause
from agent.instance_keeper import InstanceKeeper, News
from agent.jobs.runs import Runs
from agent.kernel_limits import KernelLimits
from agent.kubelet import part as kubelet
from agent.launch import authorization
from agent.launch.methods import LaunchMethods
from agent.local_api import report
from agent.local_api.listener import Caller, Listener
from agent.local_wire import Answer, Refusal, Request
from agent.logs import log
from agent.metrics import Facts
from agent.mps import MpsServers
from agent.node import STEADY_SECONDS, Node
from agent.releases import Releases, Walk
from agent.remote.remote_shares import RemoteShares
from agent.rundir import RunDir
from agent.samples import Samples
from agent.server import enrolment
from agent.server.link import Callbacks, Link
from agent.server.outbox import Outbox, Sequence
from agent.settings import Settings
from agent.suspender import Suspender

T = TypeVar("T")

# A driver that is installed or returns later is found without a restart of the agent.
NVML_RETRY_SECONDS = 10.0
# Without the persistence daemon, a machine of eight GPUs takes 10 to 20 s for its first answer.
NVML_SECONDS = 30.0


class Daemon:
    """One node's agent, made under the run directory's lock. Raises PageError if libvcuda's library is missing."""

    _link: Link | None = None

    def __init__(self, settings: Settings, run_dir: RunDir, *, token: str | None) -> None:
        self._settings, self._run_dir, self._token = settings, run_dir, token
        self._node = Node(
            library=PagesLibrary(settings.pages_library),
            claims=run_dir.claims,
            registry=Registry(run_dir.processes),
            grace_seconds=settings.grace_seconds,
            hierarchy=cgroups.find() if settings.cgroups else None,
            journals=run_dir.journals,
        )
        self._releases = Releases(self._node, grace_seconds=settings.grace_seconds)
        self._nvml = Nvml(settings.nvml_library, self._node.instances)
        self._nvml_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="nvml")
        self._inventory, self._check_now = Inventory(), asyncio.Event()
        self._drifts = Drifts(self._node, settings.library.path, report=self._tell)
        self._checkup = checkup.create(settings, self._nvml, run_dir.root, self._in_nvml_thread)
        self._jobs = Runs(self._node, settings, lambda: self._outbox, lambda: self._inventory)
        self._remote = RemoteShares(self._node, settings, lambda: self._inventory, self._renew_link)
        self._outbox = Outbox(self._observe, self._checkup.health.to_wire, self._jobs.sender)
        sequence = Sequence(settings.state_dir / "usage.seq", now_seconds=time.time())
        self._samples = Samples(self._node, self._nvml, self._in_nvml_thread, sequence, self._remote.figures)
        self._auditor = auditor.create(settings, self._outbox.put)
        self._arbiter = Arbiter(settings.arbiter, run_dir, report=partial(self._tell, "arbiter-died"))
        self._listener = Listener(run_dir.socket, self._answer)
        self._launch_methods = LaunchMethods(settings, run_dir, report=partial(self._tell, "ways-not-written"))
        self._driver, health = kubelet.DriverStatus(settings, renew=self._renew_link), self._checkup.health
        sources = kubelet.Sources(self._node, self._launch_methods, health, lambda: self._inventory, self._driver)
        self._kubelet = kubelet.create(settings, sources)
        self._kernel_limits = KernelLimits(self._node, self._nvml, run_dir.root, self._in_nvml_thread, self._tell)
        self._reports = HealthReports(settings, self._node, self._nvml, health, self._in_nvml_thread)
        nvml, news = (self._nvml, self._in_nvml_thread), News(self._settle, self._renew_link, self._tell)
        self._keeper = InstanceKeeper(self._node, *nvml, news)
        self._suspender = Suspender(self._node, settings, nvml, self._tell, self._check_now)
        self._node.mps = self._mps = MpsServers(self._node, settings, self._tell, self._check_now, self._renew_link)
        self._claim_failures, self._node_name = ClaimFailures(grace_seconds=settings.grace_seconds), ""
        self._self_check = SelfCheck(settings, self._inventory_now)
        self._reported: Hashable = None
        self._exits = ExitWatcher(self._check_now.set)

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT. Raises EnrolmentFailed or CredentialRefused."""
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        self._node.adopt()
        self._apply_stored()
        await self._take_inventory()
        await self._listener.open()
        metrics.serve(self._facts, self._settings.metrics)
        log.info("started", version=VERSION, run_dir=str(self._run_dir.root), gpus=len(self._inventory.gpus))
        loops = [
            self._keep_link(),
            self._watch(),
            self._releases.run(self._settle),
            *(self._watch_drift(), self._watch_nvml(), self._arbiter.run(), self._kernel_limits.run()),
            *(self._suspender.run(), self._keeper.run(), self._jobs.run(), self._remote.run()),
            *(self._samples.run(self._outbox), self._reports.run(self._outbox)),
            self._checkup.run(self._checkup_inputs, self._outbox),
        ]
        loops += [self._audits()] if self._settings.audit != "off" else []
        loops += [part.run() for part in (*self._kubelet, self._mps)]
        tasks = [asyncio.ensure_future(loop) for loop in (*loops, stop.wait())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # Pages and processes stay: the next agent adopts them.
            self._exits.close()
            await self._listener.close()
            log.info("stopped")

    def _apply_stored(self) -> None:
        """Apply the last stored desired state, which holds until the server sends another."""
        try:
            stored = statefile.read(self._settings.state_dir / "desired.json", wire.Desired)
        except statefile.Damaged as error:
            log.warning("state-damaged", reason=str(error))
            return
        if stored is not None:
            self._follow(stored)
            self._node.apply(stored, now=time.monotonic())

    def _apply_desired(self, desired: wire.Desired, first: bool) -> None:
        """Apply a desired state; the first after a welcome counts whatever its number (a restored server)."""
        held = self._node.desired
        if not first and held is not None and desired.frame <= held.frame:
            log.info("stale-frame-ignored", frame=desired.frame, held=held.frame)
            # A server that sends an old frame again does not know what is in force.
            self._outbox.mark_observed()
            return
        try:
            # Before the pages: an agent killed in between must not bring back an earlier desired state.
            statefile.write(self._settings.state_dir / "desired.json", desired)
        except OSError as error:
            log.warning("state-not-stored", reason=str(error))
            # Without the file the next agent keeps what the pages say; with an old file it would undo that.
            with contextlib.suppress(OSError):
                (self._settings.state_dir / "desired.json").unlink(missing_ok=True)
        self._follow(desired)
        now = time.monotonic()
        if self._node.apply(desired, now=now):
            self._samples.note_change(now=now)
            self._kernel_limits.check_now.set()
        if self._drifts.found:
            # An operator may have just ordered the repair.
            self._check_drift()
        self._settle(now)
        self._outbox.mark_observed()
        if self._node.pause_seconds(now=now) < STEADY_SECONDS:
            self._check_now.set()
        for part in (self._suspender, self._mps):
            part.check_now.set()
        self._jobs.take_order()

    def _follow(self, desired: wire.Desired) -> None:
        """Apply the node policy of the desired state."""
        policy = wire.NodePolicy() if desired.policy is msgspec.UNSET else desired.policy
        self._checkup.health.clear(policy.cleared)
        self._auditor.follow(policy.audit)
        self._claim_failures.longest_kernel_ms = policy.longest_kernel_ms

    def _settle(self, now: float, walk: Walk | None = None) -> None:
        """Continue releases; report to the server if anything differs from the last report."""
        for killed in self._releases.end_processes(now=now, walk=walk):
            words = f"{describe_processes(killed.pids)} of claim {killed.claim_uid} did not end"
            self._tell("process-killed", f"{words} in {self._settings.grace_seconds:g} s and got SIGKILL.")
        for failure in self._claim_failures.take_new(self._node.runtimes, now=now):
            self._tell(failure.code, failure.detail, assignment=failure.assignment_uid)
        observed = tuple(
            # The bytes over a limit change all the time; that it is over is the news.
            (one.uid, one.generation, one.state, one.reason if one.state != "over_limit" else None, one.suspend_refused)
            for one in self._node.observe().assignments
        )
        if observed != self._reported:
            self._reported = observed
            self._outbox.mark_observed()
        self._launch_methods.keep(self._node, self._inventory.minors)
        self._keeper.check()
        self._exits.watch({process for one in self._node.runtimes.values() for process in one.members.known})

    def _tell(self, code: str, words: str, fallen: Collection[str] = (), assignment: str | None = None) -> None:
        log.warning(code, detail=words)
        uids, words = sorted(fallen)[: wire.MAX_PROCESSES] or msgspec.UNSET, words[:2000]
        self._outbox.put(wire.Event(at=time.time(), code=code, detail=words, assignment_uid=assignment, fallen=uids))

    def _observe(self) -> wire.Observed:
        drifts = self._drifts.to_wire()
        observed = self._jobs.add_to(self._node.observe())
        return structs.replace(observed, drifts=drifts) if drifts else observed

    async def _watch_drift(self) -> None:
        while True:
            await asyncio.sleep(self._settings.drift_seconds)
            self._check_drift()

    def _check_drift(self) -> None:
        wanted = self._node.desired
        repair = wanted is not None and wanted.mend is not False
        if self._drifts.check(at=time.time(), repair=repair):
            self._outbox.mark_observed()
            self._check_now.set()

    async def _keep_link(self) -> None:
        me = await enrolment.enrol(
            server=self._settings.server,
            state_dir=self._settings.state_dir,
            token=self._token,
            cluster=self._settings.cluster,
            backoff=Backoff(self._settings.backoff_cap_seconds),
        )
        self._node_name, set_clock = me.node_name or "", self._checkup.clock.record_server_time
        jobs, self._jobs.tunnels.credential = self._jobs, me.credential
        self._link = Link(
            server=self._settings.server,
            credential=me.credential,
            outbox=self._outbox,
            callbacks=Callbacks(
                *(self._hello, self._apply_desired, set_clock, jobs.sender.take_answer, jobs.tunnels.dial),
                self._remote.take_ticket,
            ),
            backoff_cap_seconds=self._settings.backoff_cap_seconds,
        )
        await self._link.run()

    async def _hello(self) -> wire.Hello:
        await self._take_inventory()
        checks = await self._self_check.check_machine(self._inventory)
        return await hello.build(
            self._settings,
            self._inventory,
            checks,
            arbiter=self._arbiter.installed,
            backends=self._mps.backends,
            dra=await self._driver.tell(),
            suspender=self._suspender,
            remote=self._remote.endpoint,
        )

    async def _inventory_now(self) -> Inventory:
        await self._take_inventory()
        return self._inventory

    async def _take_inventory(self) -> bool:
        """Read the inventory of the GPUs; return True if NVML answered."""
        before = self._inventory
        try:
            async with asyncio.timeout(NVML_SECONDS):
                self._inventory = await self._in_nvml_thread(self._nvml.inventory)
        except TimeoutError:
            # The known GPUs stay; a hung driver must not block changes of limits.
            self._inventory = before._replace(problem=f"NVML has not answered within {NVML_SECONDS:g} s")
        found = self._inventory
        self._node.know_gpus(frozenset(gpu.uuid for gpu in found.gpus), found.problem, divided=found.divided)
        if self._inventory.problem is not None and self._inventory.problem != before.problem:
            log.error("no-gpus", reason=self._inventory.problem)
        return self._inventory.problem is None

    async def _watch_nvml(self) -> None:
        while True:
            await asyncio.sleep(NVML_RETRY_SECONDS)
            before = self._inventory
            if before.problem is None and self._nvml.complete:
                continue
            # A lost GPU that returns is no news for the server: it never left the inventory.
            news = await self._take_inventory() and self._inventory != before
            if news and self._link is not None:
                log.info("gpus-found", gpus=len(self._inventory.gpus))
                await self._renew_link()

    async def _renew_link(self) -> None:
        if self._link is not None:
            await self._link.renew()

    async def _watch(self) -> None:
        while True:
            await pause(self._check_now, self._node.pause_seconds(now=time.monotonic()))
            now = time.monotonic()
            if not self._node.is_fresh(now=now):
                self._node.step(now=now)
            self._node.heartbeat()
            self._run_dir.beat()
            self._settle(now)

    def _checkup_inputs(self) -> CheckupInputs:
        claims_run = any(runtime.members.living() for runtime in self._node.runtimes.values())
        more = [self._auditor.verdict()] if self._auditor.mode != "off" else []
        more += [*self._kernel_limits.verdicts(), *self._mps.verdicts()]
        return CheckupInputs(inventory=self._inventory, arbiter=self._arbiter.status, claims_run=claims_run, more=more)

    async def _audits(self) -> None:
        while True:
            await asyncio.sleep(audit.LOOK_SECONDS)
            listed, drawing, measured = await self._in_nvml_thread(self._nvml.list_processes)
            now, own = time.monotonic(), self._mps.pids
            listed = [one for one in listed if one.pid not in own]
            if listed:
                # The audit must not compare the GPU's present processes with a page of a second ago.
                self._node.step(now=now)
            self._auditor.take(listed, drawing, self._node.runtimes, now=now, at=time.time(), measured=measured)

    async def _in_nvml_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._nvml_thread, call)

    def _answer(self, request: Request, caller: Caller) -> Answer | Awaitable[Answer]:
        if request.ask == "check":
            return self._self_check.answer(caller)
        if request.ask == "status":
            return self._status(caller)
        if request.claim is None or request.secret is None:
            return Refusal(code="bad-request", detail="A request names a `claim` and its `secret`.")
        library, claim = self._settings.library, {"claim_uid": request.claim, "secret": request.secret}
        if request.ask == "page":
            return authorization.give_page(self._node, library, **claim, caller=caller, user=request.user)
        self._kernel_limits.check_now.set()  # Its control group is new.
        return authorization.admit(self._node, library, **claim, caller=caller)

    def _facts(self) -> Facts:
        return Facts(
            node=self._node_name,
            kubernetes_node=self._settings.kubelet.node if self._settings.kubelet is not None else None,
            hostname=socket.gethostname(),
            gpus=self._inventory.gpus,
            wanted=self._node.desired,
            observed=self._node.observe(),
            usage=self._samples.latest,
            connected=self._link is not None and self._link.connected,
            unacknowledged=self._outbox.unacknowledged,
            arbiter_running=self._arbiter.status.running,
            arbiter_restarts=self._arbiter.status.restarts,
            findings=len(self._auditor.audit.findings),
            health=self._reports.latest,
            xids={uuid: error.number for uuid, error in self._checkup.health.last_xids.items()},
            prepares=self._driver.prepares,
            remote=self._remote.counts,
            counted=self._samples.counted,
            longest_kernels=self._samples.longest_kernels,
        )

    def _status(self, caller: Caller) -> Answer:
        if not authorization.is_operator(caller):
            return Refusal(code="not-allowed", detail="Only the agent's own user and root may see its status.")
        server = report.Server(self._node_name, self._settings.server, self._link, self._outbox.unacknowledged)
        audit = report.describe_audit(self._auditor.audit, self._auditor.mode)
        status = report.describe_status(self._node, self._inventory, server, arbiter=self._arbiter.status, audit=audit)
        return report.add_runs(status, self._node.desired, self._jobs.add_to(self._node.observe()))
