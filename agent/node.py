"""Wanted → in force: makes the claims' directories match the desired state, again and again, until they do.

Level-triggered and idempotent: `apply` takes the whole wanted state, `step` goes on with what takes time (a release,
use that is to fall, a write that failed). What is on the disk is adopted, never replaced, so the agent may be killed
between any two lines. Before the first desired state is known, nothing that is found is taken away.
"""

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

import structlog

from agent import wire
from agent.claims import attribution
from agent.claims.abi import PageError, PagesLibrary
from agent.claims.claim import Holding, gpu_key
from agent.claims.groups import Groups
from agent.claims.pages import LimitSlot
from agent.claims.registry import Registry
from agent.host import cgroups
from agent.host.cgroups import Hierarchy
from agent.host.processes import Process

log = structlog.get_logger()

# A released claim's memory is waited for by the next one; a tenant over its limit may stay there for hours.
ENDING_SECONDS = 0.1
FALLING_SECONDS = 0.25
STEADY_SECONDS = 1.0
# A walk through every process's environment holds up the event loop.
KIN_SECONDS = 0.5
UID_CHARACTERS = frozenset("0123456789abcdef-")


class Killed(NamedTuple):
    """Processes of a claim that did not end when they were asked to."""

    claim_uid: str
    pids: list[int]


class Node:
    """Every claim on this machine. Not thread-safe: the event loop's."""

    def __init__(
        self,
        *,
        library: PagesLibrary,
        claims: Path,
        registry: Registry,
        grace_seconds: float,
        hierarchy: Hierarchy | None = None,
    ) -> None:
        self._library = library
        # None: claims get no control groups of their own.
        self._hierarchy = hierarchy
        self._claims = claims
        self._registry = registry
        self._grace_seconds = grace_seconds
        self.desired: wire.Desired | None = None
        self.holdings: dict[str, Holding] = {}
        self._gpus: frozenset[str] = frozenset()
        self._gpu_problem: str | None = None
        # Why an assignment is not in force, by its uid.
        self._failures: dict[str, str] = {}
        self._kin_looked_at = float("-inf")
        self._stepped_at = float("-inf")
        # Claims whose pages an earlier agent left and this one cannot read (another version's, say), and why.
        self._unreadable: dict[str, str] = {}
        # Released here and no longer wanted there; told until the next desired state.
        self._released: dict[str, int] = {}

    def adopt(self) -> None:
        """Take over what an earlier agent left in the run directory."""
        for directory in sorted(self._claims.iterdir()):
            if not _is_claim(directory):
                continue
            try:
                holding = self._open(directory.name)
            except PageError as error:
                self._unreadable[directory.name] = str(error)
                log.warning("claim-not-adopted", claim=directory.name, reason=str(error))
                continue
            log.info("claim-adopted", claim=directory.name, assignments=len(holding.slots))
        made = cgroups.named(self._hierarchy) if self._hierarchy is not None else {}
        for holding in self.holdings.values():
            holding.members.adopt_groups(made)
        for group in (cgroups.Group(path) for uid, paths in made.items() if uid not in self.holdings for path in paths):
            # Of agents that are gone; one in which somebody is stays, whosever it is.
            group.remove()

    def strangers(self) -> list[str]:
        """Directories of claims that nobody holds: somebody made them, or brought them back."""
        if self.desired is None:
            return []
        names = (path.name for path in self._claims.iterdir() if _is_claim(path))
        return sorted(name for name in names if name not in self.holdings and name not in self._unreadable)

    def take_over(self, claim_uid: str) -> None:
        """Hold such a directory: the next step ends whatever runs under it and takes it away. Raises PageError."""
        self._open(claim_uid)

    def unreadable(self) -> dict[str, str]:
        """Claims that are wanted here and whose pages cannot be read, and why."""
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
        holding = self.holdings[claim_uid]
        self._look_for_kin([holding], self._kin_looked_at)
        holding.repair_usage()

    def repair_pages(self, claim_uid: str, *, now: float) -> None:
        """Make the claim's pages usable as far as that is possible at once, unless repairs wait for an operator.

        To be called before a program starts on them. Raises nothing.
        """
        holding = self.holdings[claim_uid]
        if not self._mends:
            return
        try:
            if holding.find_lost():
                self.step(now=now)
            else:
                if holding.limits_fault() is not None:
                    holding.rewrite_limits()
                if holding.usage_fault() is not None:
                    self.repair_usage(claim_uid)
        except (PageError, OSError) as error:
            log.info("pages-not-repaired", claim=claim_uid, reason=str(error))

    def make_again(self, claim_uid: str) -> None:
        """New pages in the place of lost ones, if nobody has those mapped. Raises PageError."""
        self._made_again(self.holdings[claim_uid])

    def directory(self, claim_uid: str) -> Path:
        """Where the claim's pages are."""
        return self._claims / claim_uid

    def know_gpus(self, uuids: frozenset[str], problem: str | None) -> None:
        """What the inventory found, and why it found nothing."""
        self._gpus = uuids
        self._gpu_problem = problem

    def apply(self, desired: wire.Desired, *, now: float) -> bool:
        """Make the machine match as far as it goes at once; True if a page changed. Raises nothing."""
        self.desired = desired
        self._released = {}
        return self._reconcile(now)

    def step(self, *, now: float) -> None:
        """Read what the processes do and go on with what is not finished."""
        self._stepped_at = now
        for holding in list(self.holdings.values()):
            holding.refresh()
        if self.desired is not None:
            self._reconcile(now)

    def is_fresh(self, *, now: float) -> bool:
        """Whether nothing is to be gone on with, and all was read a moment ago: by the samples, most seconds."""
        return now - self._stepped_at < STEADY_SECONDS and self.pause_seconds(now=now) == STEADY_SECONDS

    def end_processes(self, *, now: float) -> list[Killed]:
        """Signal the processes of ending claims; returns whom SIGKILL reached now."""
        ending = [holding for holding in self.holdings.values() if holding.ending_since is not None]
        if not ending:
            return []
        killed = []
        if self._must_look_for_kin(ending, now):
            self._kin_looked_at = now
            self._look_for_kin(ending, now)
        for holding in ending:
            victims = holding.end(now=now, grace_seconds=self._grace_seconds)
            if victims:
                killed.append(Killed(holding.claim_uid, [process.pid for process in victims]))
            # The last process may have started another just before it ended: never without a look of this moment.
            if holding.kin_known_at == now and not holding.members.any_left:
                self._finish(holding)
        return killed

    @property
    def hierarchy(self) -> Hierarchy | None:
        """The tree in which claims get control groups; None where they get none."""
        return self._hierarchy

    def attribute(self, seen: list[attribution.Seen]) -> dict[str, set[Process]]:
        """Find the processes of each claim among those of the machine."""
        return attribution.divide(
            seen,
            {uid: one.members.living() for uid, one in self.holdings.items()},
            {str(one.directory): uid for uid, one in self.holdings.items()},
            may_hold=lambda uid, process: self.holdings[uid].may_hold(process),
            me=os.getpid(),
        )

    def _look_for_kin(self, ending: list[Holding], now: float) -> None:
        divided = self.attribute(attribution.take())
        for holding in ending:
            holding.members.know_kin(divided.get(holding.claim_uid, set()))
            holding.kin_known_at = now

    def _must_look_for_kin(self, ending: list[Holding], now: float) -> bool:
        """Now and then; at once where a release begins, nobody is left, or who is killed may have forked."""
        return now - self._kin_looked_at >= KIN_SECONDS or any(
            one.kin_known_at is None or not one.members.any_left or now - one.ending_since >= self._grace_seconds
            for one in ending
            if one.ending_since is not None
        )

    def pause_seconds(self, *, now: float) -> float:
        """How long the next look may wait: shorter while someone waits for what only a look can see."""
        holdings = self.holdings.values()
        # What SIGKILL does not end within a second sits in the kernel, maybe for long.
        patience = self._grace_seconds + 1.0
        if any(one.ending_since is not None and now - one.ending_since < patience for one in holdings):
            return ENDING_SECONDS
        if any(one.reaping for one in holdings):
            return ENDING_SECONDS
        if any(not slot.is_open or self._over(one, slot) for one in holdings for slot in one.slots.values()):
            return FALLING_SECONDS
        return STEADY_SECONDS

    def heartbeat(self) -> None:
        """Say on every limits page that the agent lives."""
        for holding in self.holdings.values():
            holding.heartbeat()

    def observed(self) -> wire.Observed:
        """Everything in force, as far as the last `apply` and `step` know."""
        told: dict[str, wire.Observation] = {}
        for holding in self.holdings.values():
            for slot in holding.slots.values():
                told[slot.assignment_uid] = self._observe(holding, slot)
        for uid, generation in self._released.items():
            told.setdefault(uid, wire.Observation(uid=uid, generation=generation, state="released"))
        for wanted in self.desired.assignments if self.desired else ():
            if not wanted.present and (wanted.uid not in told or wanted.uid in self._released):
                told[wanted.uid] = self._observe_gone(wanted)
            elif wanted.uid in self._failures:
                told[wanted.uid] = wire.Observation(
                    uid=wanted.uid, generation=wanted.generation, state="failed", reason=self._failures[wanted.uid]
                )
        return wire.Observed(
            frame=self.desired.frame if self.desired else 0, assignments=[told[uid] for uid in sorted(told)]
        )

    def _open(self, claim_uid: str) -> Holding:
        holding = Holding(
            library=self._library,
            claims=self._claims,
            claim_uid=claim_uid,
            registry=self._registry,
            groups=Groups(claim_uid, self._hierarchy),
        )
        # What was never read must not be told as nothing in use.
        holding.refresh()
        self.holdings[claim_uid] = holding
        return holding

    def _reconcile(self, now: float) -> bool:
        assert self.desired is not None
        generations = {wanted.uid: wanted.generation for wanted in self.desired.assignments}
        present: dict[str, list[wire.Assignment]] = {}
        for wanted in self.desired.assignments:
            if wanted.present:
                present.setdefault(wanted.claim_uid, []).append(wanted)
        changed = False
        for claim_uid, holding in list(self.holdings.items()):
            changed |= self._close_unwanted(holding, {one.uid for one in present.get(claim_uid, ())}, generations)
            if claim_uid not in present and holding.ending_since is None:
                log.info("claim-ending", claim=claim_uid, processes=len(holding.members.living()))
                holding.ending_since = now
        failures: dict[str, str] = {}
        for wanted in (one for assignments in present.values() for one in assignments):
            changed |= self._put(wanted, failures)
            reason = failures.get(wanted.uid)
            if reason is not None and reason != self._failures.get(wanted.uid):
                log.error("assignment-failed", assignment=wanted.uid, reason=reason)
        self._failures = failures
        return changed

    def _close_unwanted(self, holding: Holding, wanted: set[str], generations: dict[str, int]) -> bool:
        changed = False
        for uid, slot in list(holding.slots.items()):
            if uid in wanted and holding.ending_since is None:
                continue
            if slot.is_open:
                changed |= self._close(holding, uid, generations.get(uid))
            elif wanted and holding.ending_since is None:
                # The claim goes on elsewhere: this GPU is given back when nothing of the claim is on it any more.
                holding.refresh()
                if not holding.damaged and holding.memory_bytes(uid) == 0:
                    self._release(holding, slot)
        return changed

    def _close(self, holding: Holding, uid: str, generation: int | None) -> bool:
        try:
            return holding.close(uid, generation)
        except PageError as error:
            log.warning("slot-not-closed", assignment=uid, reason=str(error))
            return False

    def _put(self, wanted: wire.Assignment, failures: dict[str, str]) -> bool:
        holding = self.holdings.get(wanted.claim_uid)
        held = holding.slots.get(wanted.uid) if holding is not None else None
        gpu = gpu_key(wanted.gpu_uuid)
        if held is None and wanted.gpu_uuid not in self._gpus:
            failures[wanted.uid] = self._gpu_problem or f"{wanted.gpu_uuid} is not on this node"
            return False
        if held is not None and held.gpu != gpu:
            failures[wanted.uid] = f"an assignment keeps its GPU: this one is in force on GPU-{held.gpu}"
            return False
        try:
            if holding is not None and holding.lost and self._mends:
                holding = self._made_again(holding)
            if holding is None:
                holding = self._open(wanted.claim_uid)
            if holding.ending_since is not None or holding.occupant(gpu) not in (None, wanted.uid):
                # What was there before is still being released; the next step tries again.
                return False
            changed = holding.put(wanted)
        except PageError as error:
            failures[wanted.uid] = str(error)
            return False
        if changed:
            # After the write: what is told as used under the new limit must not be older than the limit itself, or the
            # server would give memory back that was allocated in between.
            holding.refresh()
            log.info("in-force", assignment=wanted.uid, generation=wanted.generation)
        return changed

    @property
    def _mends(self) -> bool:
        return self.desired is not None and self.desired.mend is not False

    def _made_again(self, holding: Holding) -> Holding:
        """New pages in the place of those that were deleted, once nobody lives who has the old ones mapped."""
        self._look_for_kin([holding], self._kin_looked_at)
        if holding.members.any_left or holding.ending_since is not None:
            return holding
        log.warning("pages-made-again", claim=holding.claim_uid, lost=holding.lost)
        del self.holdings[holding.claim_uid]
        holding.abandon()
        return self._open(holding.claim_uid)

    def _release(self, holding: Holding, slot: LimitSlot) -> None:
        self._released[slot.assignment_uid] = holding.slots[slot.assignment_uid].generation
        holding.forget(slot.assignment_uid)
        log.info("assignment-released", assignment=slot.assignment_uid)

    def _finish(self, holding: Holding) -> None:
        for slot in list(holding.slots.values()):
            self._release(holding, slot)
        holding.remove()
        del self.holdings[holding.claim_uid]
        log.info("claim-released", claim=holding.claim_uid)

    def _observe_gone(self, wanted: wire.Assignment) -> wire.Observation:
        # Its programs may still run; to call it released would promise the GPU twice.
        reason = self._unreadable.get(wanted.claim_uid)
        state: wire.AssignmentState = "released" if reason is None else "releasing"
        return wire.Observation(uid=wanted.uid, generation=wanted.generation, state=state, reason=reason)

    def _over(self, holding: Holding, slot: LimitSlot) -> bool:
        return holding.memory_bytes(slot.assignment_uid) > slot.memory_bytes

    def _observe(self, holding: Holding, slot: LimitSlot) -> wire.Observation:
        used = holding.memory_bytes(slot.assignment_uid)
        state: wire.AssignmentState = "in_force"
        reason = None
        if not slot.is_open or holding.ending_since is not None:
            state = "releasing"
            left = holding.members.living()
            reason = (
                f"{len(left)} process(es) left: {', '.join(str(process.pid) for process in left[:8])}" if left else None
            )
        elif self._over(holding, slot):
            state = "over_limit"
            reason = (
                f"the usage page is damaged: up to {used} bytes may be in use, and the limit is {slot.memory_bytes}"
                if holding.damaged
                else f"{used} bytes in use, {used - slot.memory_bytes} over the limit of {slot.memory_bytes}"
            )
        return wire.Observation(
            uid=slot.assignment_uid, generation=slot.generation, state=state, reason=reason, memory_bytes=used
        )


def _is_claim(path: Path) -> bool:
    return len(path.name) == 36 and UID_CHARACTERS.issuperset(path.name) and path.is_dir()
