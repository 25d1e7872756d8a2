"""The MPS servers of one node's claims: a control daemon for each trust group that claims with the back end mps need.

Level-triggered: each look compares the daemons with the wanted state, as for everything on the node. A claim's programs
can start once the daemon of its group is ready; until then, and while it is started again, they are refused.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import NamedTuple

from agent import wire
from agent.claims.claim import ClaimRuntime
from agent.claims.failures import describe_processes
from agent.host import processes
from agent.host.health import Verdict
from agent.host.mps import Fall, MpsDaemon, find_groups
from agent.host.mps_places import TrustGroup, places, write_fall
from agent.host.processes import Process
from agent.host.sampling import pause
from agent.local_wire import Refusal
from agent.logs import log
from agent.node import Node
from agent.settings import Settings, find_mps_control
from agent.wire import ConditionType

LOOK_SECONDS = 0.5
# A program that is installed or removed is noticed without a restart of the agent.
FIND_SECONDS = 15.0
PASSED = ("PATH", "LD_LIBRARY_PATH")
# So many starts in a row that failed are no accident: the node takes no new claims.
MOST_FAILURES = 3


# Programs by claim.
Clients = Mapping[str, set[Process]]


class _Kept(NamedTuple):
    daemon: MpsDaemon
    task: asyncio.Task[None]


class MpsServers:
    """The daemons of one node. `report` gets events; `changed` is set when a daemon became ready, or is no longer."""

    def __init__(
        self,
        node: Node,
        settings: Settings,
        report: Callable[[str, str, Collection[str]], None],
        changed: asyncio.Event,
        renew: Callable[[], Awaitable[None]],
    ) -> None:
        self._node = node
        self._library = settings.library
        self._program = settings.mps_control
        self._directory = settings.run_dir / "mps"
        self._report = report
        self._changed = changed
        self._renew = renew
        self._kept: dict[TrustGroup, _Kept] = {}
        self._users: dict[TrustGroup, frozenset[int]] = {}
        self._ready: set[TrustGroup] = set()
        # The programs on each group's GPU at the last two looks, by claim: those that fall have ended soon after.
        self._seen: dict[TrustGroup, tuple[Clients, Clients]] = {}
        # The assignments with MPS of this desired state, by claim.
        self._indexed: wire.Desired | None = None
        self._by_claim: dict[str, list[wire.Assignment]] = {}
        self.check_now = asyncio.Event()

    @property
    def backends(self) -> list[wire.BackEnd]:
        """The back ends that this node can serve beside turns, for the hello."""
        return ["native", *(["mps"] if self._program is not None else [])]  # type: ignore[list-item]

    @property
    def pids(self) -> set[int]:
        """The processes of daemons and servers: they use GPUs and belong to no claim."""
        return {one.pid for kept in self._kept.values() for one in self._processes(kept.daemon)}

    async def run(self) -> None:
        """Run until cancelled; the daemons run on."""
        looked = asyncio.get_running_loop().time()
        try:
            while True:
                if asyncio.get_running_loop().time() - looked > FIND_SECONDS:
                    looked = asyncio.get_running_loop().time()
                    await self._find_program()
                await self._match()
                await pause(self.check_now, LOOK_SECONDS)
        finally:
            for kept in self._kept.values():
                kept.task.cancel()

    def obstacle(self, claim_uid: str) -> Refusal | None:
        """Return why the claim's programs would find no MPS server at this moment; None if they would, or need none."""
        for one in self._wanted_of(claim_uid):
            group = TrustGroup.of(one)
            kept = self._kept.get(group)
            if kept is not None and kept.daemon.is_ready:
                continue
            if self._program is None:
                return Refusal(code="failed", detail=f"{self._lack()} Claim {claim_uid} needs it.")
            problem = kept.daemon.problem if kept is not None else "it is starting"
            words = f"The MPS control daemon of {group.owner} on {one.gpu_uuid} is not ready: {problem}."
            # `not-in-force` passes: who asks waits for it.
            return Refusal(code="not-in-force", detail=words)
        return None

    def variables(self, runtime: ClaimRuntime) -> dict[str, str]:
        """Return the variables that make a program of the claim a client of its group's server, and let it connect."""
        for one in self._wanted_of(runtime.claim_uid):
            if one.uid not in runtime.slots:
                continue
            group = TrustGroup.of(one)
            place = places(self._directory, group)
            if group in self._kept and runtime.owner_uid not in self._users.get(group, ()):
                # Now: a user's program may connect before the next look, and would run without MPS if it could not.
                self._admit(group, self._wanted().get(group, set()))
            return {
                "CUDA_MPS_PIPE_DIRECTORY": str(place.pipe),
                "CUDA_MPS_LOG_DIRECTORY": str(place.log),
                # As it is now: a running client keeps what it started with.
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(max(1, runtime.alone_percent(one.uid))),
            }
        return {}

    def verdicts(self) -> list[Verdict]:
        """Return the condition that the node can serve clients of MPS; none where nobody wants that."""
        policy = self._node.desired.policy if self._node.desired is not None else wire.NodePolicy()
        asked = isinstance(policy, wire.NodePolicy) and policy.backend == "mps"
        if not asked and not self._wanted():
            return []
        kind = ConditionType.MPS_SERVING
        if self._program is None:
            return [Verdict(kind, "NoMpsControl", self._lack(), unschedulable=True, at_once=True)]
        down = [kept.daemon for kept in self._kept.values() if not kept.daemon.is_ready]
        if not down:
            return [Verdict(kind, at_once=True)]
        first = down[0]
        words = f"The MPS control daemon of {first.group.owner} on {first.group.gpu_uuid}: {first.problem}."
        lasts = any(one.failures >= MOST_FAILURES for one in down)
        return [Verdict(kind, "MpsDaemonDown", words, unschedulable=lasts, at_once=not lasts)]

    def _lack(self) -> str:
        return "This node cannot serve back end mps: nvidia-cuda-mps-control is not on the PATH."

    async def _find_program(self) -> None:
        before, self._program = self._program, find_mps_control(self._library, os.environ)
        if (before is None) != (self._program is None):
            log.info("mps-control-found" if self._program else "mps-control-gone", path=self._program or before)
            await self._renew()

    def _wanted_of(self, claim_uid: str) -> list[wire.Assignment]:
        desired = self._node.desired
        if desired is not self._indexed:
            # Once for each desired state: launches are asked for every claim, every second.
            self._indexed, self._by_claim = desired, {}
            for one in desired.assignments if desired is not None else ():
                if one.backend == "mps" and one.present:
                    self._by_claim.setdefault(one.claim_uid, []).append(one)
        return self._by_claim.get(claim_uid, [])

    def _wanted(self) -> dict[TrustGroup, set[str]]:
        """Return the claims of each group, also those that are being released while their programs end."""
        found: dict[TrustGroup, set[str]] = {}
        for one in self._node.desired.assignments if self._node.desired is not None else ():
            if one.backend == "mps" and (one.present or one.claim_uid in self._node.runtimes):
                found.setdefault(TrustGroup.of(one), set()).add(one.claim_uid)
        return found

    async def _match(self) -> None:
        if self._node.desired is None:
            # What an earlier agent left may be wanted.
            return
        wanted = self._wanted()
        for group in self._kept.keys() | find_groups(self._directory).keys():
            if group not in wanted:
                await self._end(group)
        for group, claims in wanted.items():
            if group not in self._kept and self._program is not None:
                self._start(group, self._program)
            if group in self._kept:
                self._admit(group, claims)
                self._seen[group] = (self._seen.get(group, ({}, {}))[1], self._clients(group))
        ready = {group for group, kept in self._kept.items() if kept.daemon.is_ready}
        if ready != self._ready:
            self._ready = ready
            self._changed.set()

    def _make(self, group: TrustGroup, program: str) -> MpsDaemon:
        environment = {name: os.environ[name] for name in PASSED if name in os.environ}
        if self._library.simulated_driver is not None and self._library.simulated_node is not None:
            environment["LD_LIBRARY_PATH"] = str(self._library.simulated_driver)
            environment["GPUCLOUD_SIM_NODE"] = str(self._library.simulated_node)
        place = places(self._directory, group)
        return MpsDaemon(group, place, program=program, environment=environment, report=self._tell)

    def _start(self, group: TrustGroup, program: str) -> None:
        daemon = self._make(group, program)
        self._kept[group] = _Kept(daemon, asyncio.ensure_future(daemon.run()))

    async def _end(self, group: TrustGroup) -> None:
        kept, program = self._kept.pop(group, None), self._program or "nvidia-cuda-mps-control"
        self._users.pop(group, None)
        if kept is not None:
            kept.task.cancel()
            await asyncio.gather(kept.task, return_exceptions=True)
        await (kept.daemon if kept is not None else self._make(group, program)).end()

    def _admit(self, group: TrustGroup, claims: set[str]) -> None:
        """Let the users of the group's claims reach its sockets."""
        runtimes = [self._node.runtimes[uid] for uid in claims if uid in self._node.runtimes]
        users = frozenset(runtime.owner_uid for runtime in runtimes)
        daemon = self._kept[group].daemon
        if users == self._users.get(group) or not daemon.is_ready:
            return
        try:
            daemon.places.admit(users)
            self._users[group] = users
        except OSError as error:
            words = f"The users {sorted(users)} of {group.owner} cannot be let into {daemon.places.root}: {error}."
            self._report("mps-users-not-admitted", words, ())
            self._users[group] = users

    def _tell(self, fall: Fall) -> None:
        """Report the end of a daemon or server, with the claims whose programs lost their GPU by it."""
        lost = dict[str, set[Process]]()
        for look in (*self._seen.pop(fall.group, ({}, {})), self._clients(fall.group)):
            for uid, them in look.items():
                lost.setdefault(uid, set()).update(them)
        if not lost and not fall.is_daemon:
            return
        named = [f"{uid} ({describe_processes(sorted(one.pid for one in them))})" for uid, them in lost.items()]
        then = (
            f" Programs of claims {', '.join(named)} lost their GPU with it and must be started again."
            if named
            else " No program used it."
        )
        self._users.pop(fall.group, None)
        code = "mps-daemon-ended" if fall.is_daemon else "mps-client-fault" if fall.is_fault else "mps-server-ended"
        self._report(code, f"{fall.words}.{then}", lost)
        write_fall(places(self._directory, fall.group), code, f"{fall.words}.{then}")

    def _clients(self, group: TrustGroup) -> Clients:
        """Return the programs of the group's claims that use their GPUs, or have just ended, by claim."""
        runtimes = {uid: self._node.runtimes.get(uid) for uid in self._wanted().get(group, ())}
        found = {uid: runtime.find_attached() for uid, runtime in runtimes.items() if runtime is not None}
        return {uid: programs for uid, programs in found.items() if programs}

    @staticmethod
    def _processes(daemon: MpsDaemon) -> set[Process]:
        own = {daemon.process} if daemon.process is not None else set()
        return {one for one in (*own, *daemon.servers) if processes.alive(one)}
