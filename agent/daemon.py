"""The agent at work: its parts, and the loops that keep them going.

Its loops. The link keeps the connection and applies what comes over it. The watch looks at the claims' processes, and
more often while something is to end. The samples are taken once a second, the audit looks at the GPUs' processes,
the arbiter is kept running. A stuck driver call can hold up samples and audit only: NVML has a thread of its own.
"""

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import msgspec
import structlog
from msgspec import structs

from agent import VERSION, statefile, wire
from agent.backoff import Backoff
from agent.check.running import SelfCheck
from agent.claims import audit, auditor
from agent.claims.abi import PagesLibrary
from agent.claims.failures import Troubles, named
from agent.claims.meter import Meter
from agent.claims.registry import Registry
from agent.drift import Drifts
from agent.host import cgroups, checkup
from agent.host.arbiter import Arbiter
from agent.host.checkup import Around
from agent.host.exits import Deaths
from agent.host.gpus import Inventory, Nvml
from agent.host.sampling import Schedule, pause
from agent.kernel_limits import KernelLimits
from agent.kubelet import part as kubelet
from agent.launch import authorization
from agent.launch.methods import Ways
from agent.local_api import report
from agent.local_api.listener import Caller, Door
from agent.local_wire import Answer, Refusal, Request, Status
from agent.metrics import Exporter, Facts
from agent.node import Node
from agent.rundir import RunDir
from agent.server import enrolment
from agent.server.link import Callbacks, Link
from agent.server.outbox import Outbox, Sequence
from agent.settings import Settings

log = structlog.get_logger()
T = TypeVar("T")

# A driver that is installed or comes back later is found without a restart of the agent.
NVML_RETRY_SECONDS = 10.0
# Without the persistence daemon, a machine of eight GPUs takes 10 to 20 s for its first answer.
NVML_SECONDS = 30.0


class Daemon:
    """One node's agent. Made under the run directory's lock. Raises PageError where libvcuda's library is not there."""

    def __init__(self, settings: Settings, run_dir: RunDir, *, token: str | None) -> None:
        self._settings = settings
        self._run_dir = run_dir
        self._token = token
        self._node = Node(
            library=PagesLibrary(settings.pages_library),
            claims=run_dir.claims,
            registry=Registry(run_dir.processes),
            grace_seconds=settings.grace_seconds,
            hierarchy=cgroups.find() if settings.cgroups else None,
        )
        self._nvml = Nvml(settings.nvml_library)
        self._nvml_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="nvml")
        self._inventory = Inventory()
        self._drifts = Drifts(self._node, settings.library.path, report=self._tell)
        self._checkup = checkup.made(settings, self._nvml, run_dir.root, self._in_nvml_thread)
        self._outbox = Outbox(self._observed, self._conditions)
        self._sequence = Sequence(settings.state_dir / "usage.seq", now_seconds=time.time())
        self._meter = Meter()
        self._schedule = Schedule(now=time.monotonic())
        self._auditor = auditor.made(settings, self._outbox.put)
        self._arbiter = Arbiter(settings.arbiter, run_dir, report=partial(self._tell, "arbiter-died"))
        self._door = Door(run_dir.socket, self._answer)
        self._ways = Ways(
            library=settings.library,
            run_dir=run_dir,
            cdi_dir=settings.cdi_dir,
            report=partial(self._tell, "ways-not-written"),
        )
        self._kubelet = kubelet.made(settings, self._node, self._ways, self._checkup.health, lambda: self._inventory)
        self._kernel_limits = KernelLimits(self._node, self._nvml, run_dir.root, self._in_nvml_thread, self._tell)
        self._troubles = Troubles(grace_seconds=settings.grace_seconds)
        self._link: Link | None = None
        self._node_name = ""
        self._self_check = SelfCheck(settings, self._inventory_now)
        self._told: Hashable = None
        self._look_now = asyncio.Event()
        self._deaths = Deaths(self._look_now.set)
        self._sample_now = asyncio.Event()
        self._usage: wire.Usage | None = None

    def _conditions(self) -> wire.Conditions:
        return wire.Conditions(conditions=self._checkup.health.conditions)

    async def run(self) -> None:
        """Work until SIGTERM or SIGINT. Raises EnrolmentFailed or CredentialRefused."""
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        self._node.adopt()
        self._apply_stored()
        await self._take_inventory()
        await self._door.open()
        self._show_metrics()
        log.info("started", version=VERSION, run_dir=str(self._run_dir.root), gpus=len(self._inventory.gpus))
        loops = [
            self._keep_link(),
            self._watch(),
            self._look_for_drift(),
            self._samples(),
            self._look_for_nvml(),
            self._arbiter.run(),
            self._kernel_limits.run(),
            self._checkup.run(self._around, self._outbox),
        ]
        if self._settings.audit != "off":
            loops.append(self._audits())
        if self._kubelet is not None:
            loops.append(self._kubelet.run())
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
            self._deaths.close()
            await self._door.close()
            log.info("stopped")

    def _apply_stored(self) -> None:
        """What was wanted when the agent last ran holds until the server says otherwise."""
        try:
            stored = statefile.read(self._settings.state_dir / "desired.json", wire.Desired)
        except statefile.Damaged as error:
            log.warning("state-damaged", reason=str(error))
            return
        if stored is not None:
            self._follow(stored)
            self._node.apply(stored, now=time.monotonic())

    def _desired(self, desired: wire.Desired, first: bool) -> None:
        """The server's word; the first after a welcome counts whatever its number: the server may be a restored one."""
        held = self._node.desired
        if not first and held is not None and desired.frame <= held.frame:
            log.info("stale-frame-ignored", frame=desired.frame, held=held.frame)
            # Whoever sends an old frame again has not heard what is in force.
            self._outbox.mark_observed()
            return
        try:
            # Before the pages: an agent killed in between must not bring back what was wanted before.
            statefile.write(self._settings.state_dir / "desired.json", desired)
        except OSError as error:
            log.warning("state-not-stored", reason=str(error))
            # Without it the next agent keeps what the pages say; by an old one it would take that back.
            with contextlib.suppress(OSError):
                (self._settings.state_dir / "desired.json").unlink(missing_ok=True)
        self._follow(desired)
        now = time.monotonic()
        if self._node.apply(desired, now=now):
            self._schedule.changed(now=now)
            self._sample_now.set()
            self._kernel_limits.look_now.set()
        if self._drifts.found:
            # Somebody may have just said that it is to be put right.
            self._mend()
        self._settle(now)
        self._outbox.mark_observed()
        self._look_now.set()

    def _follow(self, desired: wire.Desired) -> None:
        """What is wanted of the agent beside assignments."""
        policy = wire.NodePolicy() if desired.policy is msgspec.UNSET else desired.policy
        self._checkup.health.clear(policy.cleared)
        self._auditor.follow(policy.audit)

    def _settle(self, now: float) -> None:
        """Go on with releases; tell the server where that or anything else changed what it was last told."""
        for killed in self._node.end_processes(now=now):
            words = (
                f"{named(killed.pids)} of claim {killed.claim_uid} did not end in {self._settings.grace_seconds:g} s"
            )
            self._tell("process-killed", f"{words} and got SIGKILL.")
        for trouble in self._troubles.news(self._node.holdings, now=now):
            self._tell(trouble.code, trouble.detail)
        told = tuple(
            # What is over a limit changes all the time; that it is over is the news.
            (one.uid, one.generation, one.state, one.reason if one.state != "over_limit" else None)
            for one in self._node.observed().assignments
        )
        if told != self._told:
            self._told = told
            self._outbox.mark_observed()
        self._ways.keep(self._node, self._inventory.minors)
        self._deaths.watch({process for one in self._node.holdings.values() for process in one.members.known})

    def _tell(self, code: str, words: str) -> None:
        log.warning(code, detail=words)
        self._outbox.put(wire.Event(at=time.time(), code=code, detail=words[:2000]))

    def _observed(self) -> wire.Observed:
        drifts = self._drifts.told()
        return structs.replace(self._node.observed(), drifts=drifts) if drifts else self._node.observed()

    async def _look_for_drift(self) -> None:
        while True:
            await asyncio.sleep(self._settings.drift_seconds)
            self._mend()

    def _mend(self) -> None:
        wanted = self._node.desired
        mend = wanted is not None and wanted.mend is not False
        if self._drifts.look(at=time.time(), mend=mend):
            self._outbox.mark_observed()
            self._look_now.set()

    async def _keep_link(self) -> None:
        me = await enrolment.enrol(
            server=self._settings.server,
            state_dir=self._settings.state_dir,
            token=self._token,
            cluster=self._settings.cluster,
            backoff=Backoff(self._settings.backoff_cap_seconds),
        )
        self._node_name = me.node_name or ""
        self._link = Link(
            server=self._settings.server,
            credential=me.credential,
            outbox=self._outbox,
            callbacks=Callbacks(hello=self._hello, desired=self._desired, server_time=self._checkup.clock.told),
            backoff_cap_seconds=self._settings.backoff_cap_seconds,
        )
        await self._link.run()

    async def _hello(self) -> wire.Hello:
        await self._take_inventory()
        return wire.Hello(
            agent_version=VERSION,
            driver_version=self._inventory.driver_version,
            hostname=socket.gethostname(),
            run_dir=str(self._run_dir.root),
            library=str(self._settings.library.path),
            simulated=self._settings.library.simulated_node is not None,
            arbiter=self._arbiter.installed,
            gpus=list(self._inventory.gpus),
            checks=await self._self_check.of_machine(self._inventory),
            kubernetes_node=self._settings.kubelet.node if self._settings.kubelet is not None else msgspec.UNSET,
        )

    async def _inventory_now(self) -> Inventory:
        await self._take_inventory()
        return self._inventory

    async def _take_inventory(self) -> bool:
        """Look at the GPUs; True if NVML answered."""
        before = self._inventory
        try:
            async with asyncio.timeout(NVML_SECONDS):
                self._inventory = await self._in_nvml_thread(self._nvml.inventory)
        except TimeoutError:
            # What was known of the GPUs still holds; a hung driver must not keep limits from moving.
            words = f"NVML has not answered within {NVML_SECONDS:g} s"
            self._inventory = before._replace(problem=words)
        self._node.know_gpus(frozenset(gpu.uuid for gpu in self._inventory.gpus), self._inventory.problem)
        if self._inventory.problem is not None and self._inventory.problem != before.problem:
            log.error("no-gpus", reason=self._inventory.problem)
        return self._inventory.problem is None

    async def _look_for_nvml(self) -> None:
        while True:
            await asyncio.sleep(NVML_RETRY_SECONDS)
            before = self._inventory
            if before.problem is None and self._nvml.complete:
                continue
            # A lost GPU that comes back is no news for the server: it never left the inventory.
            news = await self._take_inventory() and self._inventory != before
            if news and self._link is not None:
                log.info("gpus-found", gpus=len(self._inventory.gpus))
                await self._link.renew()

    async def _watch(self) -> None:
        while True:
            await pause(self._look_now, self._node.pause_seconds(now=time.monotonic()))
            now = time.monotonic()
            if not self._node.is_fresh(now=now):
                self._node.step(now=now)
            self._node.heartbeat()
            self._settle(now)

    async def _samples(self) -> None:
        # The first reading is only what the next is compared with.
        self._node.step(now=time.monotonic())
        self._meter.read(self._node.holdings, now=time.monotonic())
        while True:
            await pause(self._sample_now, self._schedule.next - time.monotonic())
            now = time.monotonic()
            if now < self._schedule.next:
                continue
            self._schedule.taken(now=now)
            gpus = await self._in_nvml_thread(self._nvml.sample)
            now = time.monotonic()
            self._node.step(now=now)
            assignments = self._meter.read(self._node.holdings, now=now)
            self._usage = wire.Usage(seq=self._sequence.next(), at=time.time(), gpus=gpus, assignments=assignments)
            self._outbox.keep(self._usage)

    def _around(self) -> Around:
        claims_run = any(holding.members.living() for holding in self._node.holdings.values())
        more = [self._auditor.verdict()] if self._auditor.mode != "off" else []
        more += self._kernel_limits.verdicts()
        return Around(inventory=self._inventory, arbiter=self._arbiter.status, claims_run=claims_run, more=more)

    async def _audits(self) -> None:
        while True:
            await asyncio.sleep(audit.LOOK_SECONDS)
            listed, drawing, measured = await self._in_nvml_thread(self._nvml.listed)
            now = time.monotonic()
            if listed:
                # What is on the GPU now must not be held against a page of a second ago.
                self._node.step(now=now)
            self._auditor.take(listed, drawing, self._node.holdings, now=now, at=time.time(), measured=measured)

    async def _in_nvml_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._nvml_thread, call)

    def _answer(self, request: Request, caller: Caller) -> Answer | Awaitable[Answer]:
        if request.ask == "check":
            return self._self_check.answer(caller)
        if request.ask == "status":
            return self._status(caller)
        if request.claim is None or request.secret is None:
            return Refusal(code="bad-request", detail="A request names a `claim` and its `secret`.")
        asked = {"claim_uid": request.claim, "secret": request.secret}
        if request.ask == "page":
            return authorization.give_page(
                self._node, self._settings.library, **asked, caller=caller, user=request.user
            )
        # Its control group is new.
        self._kernel_limits.look_now.set()
        return authorization.admit(self._node, self._settings.library, **asked, caller=caller)

    def _show_metrics(self) -> None:
        if self._settings.metrics is None:
            return
        host, port = self._settings.metrics
        try:
            Exporter(self._facts, asyncio.get_running_loop()).listen(host, port)
        except OSError as error:
            # The node's limits matter more than who watches them.
            log.error("metrics-not-served", host=host, port=port, reason=str(error))  # noqa: TRY400

    def _facts(self) -> Facts:
        return Facts(
            node=self._node_name,
            kubernetes_node=self._settings.kubelet.node if self._settings.kubelet is not None else None,
            hostname=socket.gethostname(),
            gpus=self._inventory.gpus,
            wanted=self._node.desired,
            observed=self._node.observed(),
            usage=self._usage,
            connected=self._link is not None and self._link.connected,
            unacknowledged=self._outbox.unacknowledged,
            arbiter_running=self._arbiter.status.running,
            arbiter_restarts=self._arbiter.status.restarts,
            findings=len(self._auditor.audit.findings),
            xids=self._checkup.health.last_xids,
        )

    def _status(self, caller: Caller) -> Answer:
        if not authorization.is_operator(caller):
            return Refusal(code="not-allowed", detail="Only the agent's own user and root may see what it holds.")
        return Status(
            node=self._node_name,
            server=self._settings.server,
            connected=self._link is not None and self._link.connected,
            frame=self._node.desired.frame if self._node.desired else None,
            gpus=len(self._inventory.gpus),
            gpu_problem=self._inventory.problem,
            usage_unacknowledged=self._outbox.unacknowledged,
            arbiter=self._arbiter.status,
            audit=report.audited(self._auditor.audit, self._auditor.mode),
            assignments=report.held(self._node),
        )
