"""The reconciler of one node: makes the claims' directories match the desired state, again and again, until they do.

Level-triggered and idempotent: `apply` takes the whole wanted state, `step` continues what takes time (a release, use
that is to fall, a write that failed). Existing directories are adopted, never replaced, so the agent may be killed
between any two lines. Before the first desired state is known, nothing is removed.
"""

import contextlib
import os
from pathlib import Path

from agent import wire
from agent.claims import attribution
from agent.claims.abi import PageError, PagesLibrary
from agent.claims.claim import ClaimRuntime, gpu_key
from agent.claims.group_file import write_groups
from agent.claims.groups import Groups
from agent.claims.instances import Instances, holder_of, on_device, part_of_gpu
from agent.claims.pages import LimitSlot
from agent.claims.registry import Registry
from agent.claims.serving import Serving
from agent.host import cgroups
from agent.host.cgroups import Hierarchy
from agent.host.processes import Process
from agent.logs import log
from agent.rundir import NO_JOURNALS, Journals
from agent.suspend.observing import is_over, observe
from agent.suspend.records import Suspensions

# The next claim waits for a released claim's memory; a tenant over its limit may stay there for hours.
ENDING_SECONDS = 0.1
FALLING_SECONDS = 0.25
STEADY_SECONDS = 1.0
UID_CHARACTERS = frozenset("0123456789abcdef-")


class Node:
    """The runtimes of all claims on this machine. Not thread-safe: the event loop's."""

    def __init__(
        self,
        *,
        library: PagesLibrary,
        claims: Path,
        registry: Registry,
        grace_seconds: float,
        hierarchy: Hierarchy | None = None,
        journals: Journals = NO_JOURNALS,
    ) -> None:
        self._library = library
        # None: claims get no control groups of their own.
        self._hierarchy = hierarchy
        self._claims = claims
        self._registry = registry
        self._grace_seconds = grace_seconds
        # Set by the daemon; without it no claim has a server.
        self.mps: Serving | None = None
        self.suspensions = Suspensions(journals.suspensions)
        self.instances = Instances(journals.instances)
        self.desired: wire.Desired | None = None
        self.runtimes: dict[str, ClaimRuntime] = {}
        self._gpus: frozenset[str] = frozenset()
        # Those in MIG mode.
        self._divided: frozenset[str] = frozenset()
        self._gpu_problem: str | None = None
        # The reason why an assignment is not in force, by its uid.
        self._failures: dict[str, str] = {}
        self._stepped_at = float("-inf")
        # Claims whose pages an earlier agent left and this one cannot read (another version's, say), and why.
        self._unreadable: dict[str, str] = {}
        # Released here and no longer wanted by the server; reported until the next desired state.
        self._released: dict[str, int] = {}

    def adopt(self) -> None:
        """Adopt the claims that an earlier agent left in the run directory."""
        for directory in sorted(self._claims.iterdir()):
            if not _is_claim(directory):
                continue
            try:
                runtime = self._open(directory.name)
            except PageError as error:
                self._unreadable[directory.name] = str(error)
                log.warning("claim-not-adopted", claim=directory.name, reason=str(error))
                continue
            log.info("claim-adopted", claim=directory.name, assignments=len(runtime.slots))
        self.suspensions.adopt(self.runtimes)
        self.instances.adopt()
        made = cgroups.find_claim_groups(self._hierarchy) if self._hierarchy is not None else {}
        for runtime in self.runtimes.values():
            runtime.members.adopt_groups(made)
        for group in (cgroups.Group(path) for uid, paths in made.items() if uid not in self.runtimes for path in paths):
            # Groups of earlier agents; one with a process in it stays, whatever its claim.
            group.remove()

    def unknown_directories(self) -> list[str]:
        """Return the directories of claims without a runtime: somebody made them, or brought them back."""
        if self.desired is None:
            return []
        names = (path.name for path in self._claims.iterdir() if _is_claim(path))
        return sorted(name for name in names if name not in self.runtimes and name not in self._unreadable)

    def take_over(self, claim_uid: str) -> None:
        """Open such a directory: the next step ends its programs and removes it. Raises PageError."""
        self._open(claim_uid)

    def unreadable(self) -> dict[str, str]:
        """Return the claims that are wanted here and whose pages cannot be read, and why."""
        wanted = {one.claim_uid for one in self.desired.assignments if one.present} if self.desired else set()
        return {uid: reason for uid, reason in self._unreadable.items() if uid in wanted}

    def make_anew(self, claim_uid: str) -> None:
        """Put the pages of such a claim aside; the next step writes new ones. Raises PageError, OSError."""
        for page in (self.directory(claim_uid) / name for name in ("limits", "usage")):
            with contextlib.suppress(FileNotFoundError):
                page.rename(page.with_suffix(".damaged"))
        del self._unreadable[claim_uid]
        self._open(claim_uid)

    def repair_usage(self, claim_uid: str) -> None:
        """Make a damaged usage page usable again. Raises OSError; PageError while programs run on it."""
        runtime = self.runtimes[claim_uid]
        self._attribute_now(runtime)
        runtime.repair_usage()

    def repair_pages(self, claim_uid: str, *, now: float) -> None:
        """Make the claim's pages usable as far as that is possible at once, unless repairs wait for an operator.

        Call it before a program starts on them. Raises nothing.
        """
        runtime = self.runtimes[claim_uid]
        if not self._repairs_enabled:
            return
        try:
            if runtime.find_lost():
                self.step(now=now)
            else:
                if runtime.limits_fault() is not None:
                    runtime.rewrite_limits()
                if runtime.usage_fault() is not None:
                    self.repair_usage(claim_uid)
        except (PageError, OSError) as error:
            log.info("pages-not-repaired", claim=claim_uid, reason=str(error))

    def remake_pages(self, claim_uid: str) -> None:
        """Make new pages in the place of lost ones, if nobody has those mapped. Raises PageError."""
        self._remake_pages(self.runtimes[claim_uid])

    def directory(self, claim_uid: str) -> Path:
        """Return the directory of the claim's pages."""
        return self._claims / claim_uid

    def know_gpus(self, uuids: frozenset[str], problem: str | None, *, divided: frozenset[str] = frozenset()) -> None:
        """Set the GPUs that the inventory found, those of them in MIG mode, and why it found none."""
        self._gpus, self._divided = uuids, divided
        self._gpu_problem = problem

    def apply(self, desired: wire.Desired, *, now: float) -> bool:
        """Make the machine match as far as it goes at once; return True if a page changed. Raises nothing."""
        self.desired = desired
        self._released = {}
        return self._reconcile(now)

    def step(self, *, now: float) -> None:
        """Read what the processes do and continue what is not finished."""
        self._stepped_at = now
        for runtime in list(self.runtimes.values()):
            runtime.refresh()
        if self.desired is not None:
            self._reconcile(now)

    def is_fresh(self, *, now: float) -> bool:
        """Return whether no work is pending and usage was read within STEADY_SECONDS, by the samples."""
        return now - self._stepped_at < STEADY_SECONDS and self.pause_seconds(now=now) == STEADY_SECONDS

    @property
    def hierarchy(self) -> Hierarchy | None:
        """The tree in which claims get control groups; None if they get none."""
        return self._hierarchy

    def attribute(self, seen: list[attribution.ProcessInfo]) -> dict[str, set[Process]]:
        """Find the processes of each claim among those of the machine."""
        return attribution.attribute(
            seen,
            {uid: one.members.living() for uid, one in self.runtimes.items()},
            {str(one.directory): uid for uid, one in self.runtimes.items()},
            accepts=lambda uid, process: self.runtimes[uid].accepts(process),
            me=os.getpid(),
        )

    def set_attributed(
        self, runtimes: list[ClaimRuntime], seen: list[attribution.ProcessInfo], *, now: float | None
    ) -> None:
        """Set the processes of these claims among all of the machine, as they were seen at this time."""
        divided = self.attribute(seen)
        for runtime in runtimes:
            runtime.members.set_attributed(divided.get(runtime.claim_uid, set()))
            runtime.attributed_at = now

    def finish(self, runtime: ClaimRuntime) -> None:
        """Release a claim of which nothing runs any more, and remove its pages."""
        for slot in list(runtime.slots.values()):
            self._release(runtime, slot)
        runtime.remove()
        del self.runtimes[runtime.claim_uid]
        self.suspensions.forget(runtime.claim_uid)
        log.info("claim-released", claim=runtime.claim_uid)

    def _attribute_now(self, runtime: ClaimRuntime) -> None:
        self.set_attributed([runtime], attribution.read_processes(), now=runtime.attributed_at)

    def pause_seconds(self, *, now: float) -> float:
        """Return how long the next check may wait: shorter while a release or a falling use needs one."""
        runtimes = self.runtimes.values()
        # A process that SIGKILL does not end within a second blocks in the kernel, maybe for long.
        patience = self._grace_seconds + 1.0
        if any(one.ending_since is not None and now - one.ending_since < patience for one in runtimes):
            return ENDING_SECONDS
        if any(one.reaping for one in runtimes):
            return ENDING_SECONDS
        if any(not slot.is_open or is_over(one, slot) for one in runtimes for slot in one.slots.values()):
            return FALLING_SECONDS
        return STEADY_SECONDS

    def parts_of_gpus(self) -> dict[str, int]:
        """Return the percent of its GPU that each assignment's MIG device is."""
        wanted = self.desired.assignments if self.desired else ()
        return {one.uid: part_of_gpu(one) for one in wanted if one.mig is not None}

    def heartbeat(self) -> None:
        """Write the agent's heartbeat to every limits page."""
        for runtime in self.runtimes.values():
            runtime.heartbeat()

    def observe(self, claim_uid: str | None = None) -> wire.Observed:
        """Return everything in force, or what this claim has, as far as the last `apply` and `step` know."""
        observations: dict[str, wire.Observation] = {}
        for runtime in (one for uid, one in self.runtimes.items() if claim_uid in (None, uid)):
            for slot in runtime.slots.values():
                observations[slot.assignment_uid] = observe(runtime, slot, self.suspensions)
        for uid, generation in self._released.items():
            observations.setdefault(uid, self._observe_released(uid, generation))
        for wanted in self.desired.assignments if self.desired else ():
            if not wanted.present and (wanted.uid not in observations or wanted.uid in self._released):
                observations[wanted.uid] = self._observe_gone(wanted)
            elif wanted.uid in self._failures:
                observations[wanted.uid] = wire.Observation(
                    uid=wanted.uid, generation=wanted.generation, state="failed", reason=self._failures[wanted.uid]
                )
        frame = self.desired.frame if self.desired else 0
        return wire.Observed(frame=frame, assignments=[observations[uid] for uid in sorted(observations)])

    def _open(self, claim_uid: str) -> ClaimRuntime:
        runtime = ClaimRuntime(
            library=self._library,
            claims=self._claims,
            claim_uid=claim_uid,
            registry=self._registry,
            groups=Groups(claim_uid, self._hierarchy),
        )
        # Usage that was never read must not be reported as zero.
        runtime.refresh()
        self.runtimes[claim_uid] = runtime
        return runtime

    def _reconcile(self, now: float) -> bool:
        assert self.desired is not None
        generations = {wanted.uid: wanted.generation for wanted in self.desired.assignments}
        present: dict[str, list[wire.Assignment]] = {}
        for wanted in self.desired.assignments:
            if wanted.present:
                present.setdefault(wanted.claim_uid, []).append(wanted)
        changed = False
        for claim_uid, runtime in list(self.runtimes.items()):
            changed |= self._close_unwanted(runtime, {one.uid for one in present.get(claim_uid, ())}, generations)
            if claim_uid not in present and runtime.ending_since is None:
                log.info("claim-ending", claim=claim_uid, processes=len(runtime.members.living()))
                runtime.ending_since = now
        for claim_uid, assignments in present.items():
            self.suspensions.wish(claim_uid, assignments)
        failures: dict[str, str] = {}
        for wanted in (one for assignments in present.values() for one in assignments):
            changed |= self._put(wanted, failures)
            reason = failures.get(wanted.uid)
            if reason is not None and reason != self._failures.get(wanted.uid):
                log.error("assignment-failed", assignment=wanted.uid, reason=reason)
        self._failures = failures
        if self.desired.groups:
            write_groups(self.runtimes, self.desired.groups)
        return changed

    def _close_unwanted(self, runtime: ClaimRuntime, wanted: set[str], generations: dict[str, int]) -> bool:
        changed = False
        for uid, slot in list(runtime.slots.items()):
            if uid in wanted and runtime.ending_since is None:
                continue
            if slot.is_open:
                changed |= self._close(runtime, uid, generations.get(uid))
            elif wanted and runtime.ending_since is None:
                # The claim continues elsewhere: this GPU is given back when nothing of the claim is on it any more.
                runtime.refresh()
                if not runtime.damaged and runtime.memory_bytes(uid) == 0:
                    self._release(runtime, slot)
        return changed

    def _close(self, runtime: ClaimRuntime, uid: str, generation: int | None) -> bool:
        try:
            return runtime.close(uid, generation)
        except PageError as error:
            log.warning("slot-not-closed", assignment=uid, reason=str(error))
            return False

    def _put(self, wanted: wire.Assignment, failures: dict[str, str]) -> bool:
        runtime = self.runtimes.get(wanted.claim_uid)
        held = runtime.slots.get(wanted.uid) if runtime is not None else None
        if held is None and wanted.gpu_uuid not in self._gpus:
            failures[wanted.uid] = self._gpu_problem or f"{wanted.gpu_uuid} is not on this node"
            return False
        on_device = self._on_device(wanted, failures)
        if on_device is None:
            return False
        wanted, gpu = on_device, gpu_key(on_device.gpu_uuid)
        is_held = self.suspensions.is_held(wanted.claim_uid)
        # The slot of a suspended claim moves with its programs, when they resume.
        if held is not None and held.gpu != gpu and not is_held:
            failures[wanted.uid] = f"an assignment keeps its GPU: this one is in force on GPU-{held.gpu}"
            return False
        try:
            if runtime is not None and runtime.lost and self._repairs_enabled:
                runtime = self._remake_pages(runtime)
            if runtime is None:
                runtime = self._open(wanted.claim_uid)
            if runtime.ending_since is not None or (held is None and runtime.occupant(gpu) not in (None, wanted.uid)):
                # The previous assignment is still being released; the next step tries again.
                return False
            changed = runtime.put(wanted, suspended=self.suspensions.is_shut(wanted.claim_uid))
        except PageError as error:
            failures[wanted.uid] = str(error)
            return False
        if changed:
            # After the write: the use reported under the new limit must not be older than the limit itself, or the
            # server would give memory back that was allocated in between.
            runtime.refresh()
            log.info("in-force", assignment=wanted.uid, generation=wanted.generation)
        return changed

    @property
    def _repairs_enabled(self) -> bool:
        return self.desired is not None and self.desired.mend is not False

    def _on_device(self, wanted: wire.Assignment, failures: dict[str, str]) -> wire.Assignment | None:
        """Return the assignment as its page has it, on its own or a shared MIG device; None if it cannot be now."""
        if wanted.mig is None:
            if wanted.gpu_uuid in self._divided:
                failures[wanted.uid] = f"{wanted.gpu_uuid} is in MIG mode, and this claim has no instance on it"
                return None
            return wanted
        holder = holder_of(wanted)
        device, problem = self.instances.device(holder), self.instances.problems.get(holder)
        if device is not None:
            return on_device(wanted, device)
        if problem is not None:
            failures[wanted.uid] = problem
        return None

    def _remake_pages(self, runtime: ClaimRuntime) -> ClaimRuntime:
        """Make new pages in the place of deleted ones, once no living process has the old ones mapped."""
        self._attribute_now(runtime)
        if runtime.members.any_left or runtime.ending_since is not None:
            return runtime
        log.warning("pages-made-again", claim=runtime.claim_uid, lost=runtime.lost)
        del self.runtimes[runtime.claim_uid]
        runtime.abandon()
        return self._open(runtime.claim_uid)

    def _release(self, runtime: ClaimRuntime, slot: LimitSlot) -> None:
        self._released[slot.assignment_uid] = runtime.slots[slot.assignment_uid].generation
        runtime.forget(slot.assignment_uid)
        log.info("assignment-released", assignment=slot.assignment_uid)

    def _observe_released(self, uid: str, generation: int) -> wire.Observation:
        if not self.instances.holds(uid):
            return wire.Observation(uid=uid, generation=generation, state="released")
        words = self.instances.problems.get(uid)
        return wire.Observation(uid=uid, generation=generation, state="releasing", reason=words)

    def _observe_gone(self, wanted: wire.Assignment) -> wire.Observation:
        # Its programs may still run; to call it released would promise the GPU twice.
        if self.instances.holds(wanted.uid):
            return self._observe_released(wanted.uid, wanted.generation)
        reason = self._unreadable.get(wanted.claim_uid)
        state: wire.AssignmentState = "released" if reason is None else "releasing"
        return wire.Observation(uid=wanted.uid, generation=wanted.generation, state=state, reason=reason)


def _is_claim(path: Path) -> bool:
    return len(path.name) == 36 and UID_CHARACTERS.issuperset(path.name) and path.is_dir()
