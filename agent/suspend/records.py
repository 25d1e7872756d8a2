"""The suspensions of the node's claims: what is wanted, how far each is, and a journal on disk.

The journal says what an earlier agent had begun. It is written before the first call of the driver, so that a claim
without a record has no suspended process.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from agent import statefile, wire
from agent.host.processes import Process, alive
from agent.logs import log

Phase = Literal["suspending", "suspended", "resuming"]


class Wish(NamedTuple):
    """The wish of the server for a claim: suspended or not, and at which generations."""

    suspended: bool
    generations: tuple[tuple[str, int], ...]
    # The GPU of each assignment, by NVML's name.
    gpus: tuple[tuple[str, str], ...] = ()
    # Not 0: its programs are not suspended, but end after this time to save their state.
    end_seconds: int = 0
    # Its programs are carried to another node, or from one.
    carry: wire.Carry | None = None


class Refusal(NamedTuple):
    """Why a wish could not be fulfilled, with what to do."""

    wish: Wish
    words: str


@dataclass
class Suspension:
    """One claim whose programs are not simply running."""

    phase: Phase
    # Bytes in host memory, or on the way there, by assignment.
    saved: dict[str, int] = field(default_factory=dict)
    # The processes whose GPU memory that is.
    processes: set[Process] = field(default_factory=set)
    # The GPUs, by assignment, on which each process was when it was last suspended, while it is brought to others. One
    # that is not in here was where the limits page says.
    homes: dict[Process, dict[str, str]] = field(default_factory=dict)
    # False: an earlier agent's word, or a helper's that was killed: the driver is to be asked.
    is_checked: bool = False
    # True: its programs end, and use the GPU until they have.
    lets_end: bool = False
    # True: CRIU may have left the processes stopped: they must not be asked anything before they continue.
    is_dumped: bool = False
    # By the monotonic clock: when the present phase began.
    since: float = 0.0

    @property
    def saved_bytes(self) -> int:
        """Host memory of all assignments together."""
        return sum(self.saved.values())

    def find_homes(self, page: dict[str, str]) -> dict[Process, dict[str, str]]:
        """Return where each living process was when it was suspended; `page`: the GPUs by the limits page."""
        return {one: self.homes.get(one, page) for one in self.processes if alive(one)}


class Stored(msgspec.Struct, array_like=True):
    """A record in the journal. An earlier agent's ends after the processes."""

    phase: Phase
    saved: dict[str, int]
    processes: list[tuple[int, int]]
    homes: list[tuple[int, int, dict[str, str]]] = []
    is_dumped: bool = False


class Suspensions:
    """The records of one node's claims. Not thread-safe: the event loop's."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.claims: dict[str, Suspension] = {}
        self.wishes: dict[str, Wish] = {}
        # Of claims whose programs may be sent to this node.
        self.tickets: dict[str, wire.Ticket] = {}
        self._refusals: dict[str, Refusal] = {}
        # True: there is a journal, and what it says cannot be read.
        self._is_lost = False
        if path is not None:
            self._load(path)

    def _load(self, path: Path) -> None:
        try:
            stored = statefile.read(path, dict[str, Stored]) or {}
        except statefile.Damaged as error:
            log.warning("suspensions-damaged", reason=str(error))
            self._is_lost, stored = True, {}
        for claim_uid, one in stored.items():
            homes = {Process(pid, ticks): gpus for pid, ticks, gpus in one.homes}
            processes = {Process(*pair) for pair in one.processes}
            self.claims[claim_uid] = Suspension(one.phase, one.saved, processes, homes, is_dumped=one.is_dumped)

    def adopt(self, claim_uids: Iterable[str]) -> None:
        """Ask the processes of all claims of an earlier agent, if its journal was lost: some may be suspended."""
        if self._is_lost:
            self.claims = {uid: Suspension("resuming") for uid in claim_uids}

    def wish(self, claim_uid: str, assignments: list[wire.Assignment]) -> None:
        """Take what the server wants of the claim; a claim that is to be suspended is `suspending` from now on."""
        wish = Wish(
            any(one.suspended for one in assignments),
            tuple((one.uid, one.generation) for one in assignments),
            tuple((one.uid, one.gpu_uuid) for one in assignments),
            max(one.end_seconds for one in assignments),
            next((one.carry for one in assignments if one.carry is not None), None),
        )
        is_new = claim_uid not in self.wishes
        self.wishes[claim_uid] = wish
        record = self.claims.get(claim_uid)
        if self.refusal(claim_uid) is not None:
            return
        if wish.suspended and record is None:
            self._begin(claim_uid, Suspension("suspending", lets_end=wish.end_seconds > 0))
        elif not wish.suspended and record is not None and record.phase == "suspended" and record.is_checked:
            self._begin(claim_uid, record, "resuming")
        elif not wish.suspended and record is None and is_new and wish.carry is not None:
            # Of an agent that has lost its journal: whether the programs came is to be seen before they count as there.
            self._begin(claim_uid, Suspension("resuming"), "resuming")

    def forget(self, claim_uid: str) -> None:
        """Drop the claim, which has ended here."""
        self.wishes.pop(claim_uid, None)
        self._refusals.pop(claim_uid, None)
        if self.claims.pop(claim_uid, None) is not None:
            self.store()

    def refusal(self, claim_uid: str) -> str | None:
        """Return why the present wish could not be fulfilled; None if it was not refused."""
        refusal = self._refusals.get(claim_uid)
        return refusal.words if refusal is not None and refusal.wish == self.wishes.get(claim_uid) else None

    def refuse(self, claim_uid: str, wish: Wish, words: str) -> None:
        """Record that this wish cannot be fulfilled."""
        log.warning("suspension-refused", claim=claim_uid, suspended=wish.suspended, reason=words)
        self._refusals[claim_uid] = Refusal(wish, words[:2000])

    def note_suspended(self, claim_uid: str, processes: set[Process]) -> bool:
        """Record that all of the claim's processes were observed suspended.

        Return False, and record nothing, if CRIU has dumped them and the journal cannot be written: the next agent
        would let them go on here while they run on another node.
        """
        record = self.claims[claim_uid]
        before = record.phase, record.since, record.processes, record.is_checked
        record.processes, record.is_checked = processes, True
        if record.phase != "suspended":
            record.phase, record.since = "suspended", time.monotonic()
        if not self.store() and record.is_dumped and before[0] != "suspended":
            record.phase, record.since, record.processes, record.is_checked = before
            return False
        if before[0] != "suspended":
            log.info("claim-suspended", claim=claim_uid, processes=len(processes), bytes=record.saved_bytes)
        return True

    def note_running(self, claim_uid: str) -> None:
        """Record that all of the claim's processes run."""
        if self.claims.pop(claim_uid, None) is not None:
            log.info("claim-runs", claim=claim_uid)
            self.store()

    def is_held(self, claim_uid: str) -> bool:
        """Return whether the claim's programs are suspended, or on the way there or back."""
        return claim_uid in self.claims

    def is_shut(self, claim_uid: str) -> bool:
        """Return whether the claim's programs must leave the GPU alone."""
        return claim_uid in self.claims and not self.claims[claim_uid].lets_end

    def find_suspended(self) -> set[str]:
        """Return the claims that have nothing on their GPUs."""
        return {uid for uid, record in self.claims.items() if record.phase == "suspended"}

    def host_bytes(self) -> int:
        """Return the host memory that all suspended claims take."""
        return sum(record.saved_bytes for record in self.claims.values())

    def store(self) -> bool:
        """Write the journal; return False if that failed. The next agent asks every process of a wanted suspension."""
        rows = {
            uid: Stored(
                one.phase,
                one.saved,
                sorted((process.pid, process.start_ticks) for process in one.processes),
                sorted((*process, gpus) for process, gpus in one.homes.items()),
                one.is_dumped,
            )
            for uid, one in self.claims.items()
        }
        try:
            if self._path is not None:
                statefile.write(self._path, rows)
        except OSError as error:
            log.warning("suspensions-not-stored", reason=str(error))
            return False
        return True

    def _begin(self, claim_uid: str, record: Suspension, phase: Phase = "suspending") -> None:
        record.phase, record.since, record.is_checked = phase, time.monotonic(), False
        self.claims[claim_uid] = record
        log.info("suspension-begun" if phase == "suspending" else "resumption-begun", claim=claim_uid)
        self.store()
