"""What on this machine is not as the agent left it, and putting it right again.

Somebody edits a limits page or takes a file away, a directory appears that no assignment has, a program runs under
another library. The agent's own step would not see it: it compares what is wanted with what it believes it wrote. So
everything is read anew every few seconds, from the disk and from /proc.

What is mended keeps running programs as they are: a page is written again in place. Where mending needs them to end, it
waits until they have; where only somebody there can help, it is told.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import structlog

from agent import wire
from agent.claims import attribution
from agent.claims.abi import PageError
from agent.claims.claim import Holding
from agent.host import processes
from agent.host.processes import Process
from agent.node import Node

log = structlog.get_logger()

# Of one look: a node on which everything is wrong must not fill frames, or the log of the whole platform.
MOST = wire.MAX_DRIFTS


class Found(NamedTuple):
    """One thing that is not as it should be."""

    kind: wire.DriftKind
    claim_uid: str
    detail: str
    # Puts it right; None where that is not the agent's to do. Raises PageError, OSError.
    mend: Callable[[], None] | None = None

    @property
    def key(self) -> tuple[str, str]:
        """By which it is known again at the next look."""
        return self.kind, self.claim_uid


class Drifts:
    """What was found on one node. `report` tells the server of each once, and once more when it was put right."""

    def __init__(self, node: Node, library: Path, *, report: Callable[[str, str], None]) -> None:
        self._node = node
        self._library = library
        self._report = report
        self._since: dict[tuple[str, str], float] = {}
        # Whether each process maps the agent's library: what is mapped does not change.
        self._loaded: dict[Process, str | None] = {}
        self.found: list[Found] = []

    def look(self, *, at: float, mend: bool) -> bool:
        """Read everything anew and mend what can be, if told to; True where what is told of has changed."""
        before = {one.key for one in self.found}
        left = []
        for one in list(self._all())[:MOST]:
            if one.key not in before:
                log.warning("drift", kind=one.kind, claim=one.claim_uid, detail=one.detail)
                # These are told of as the tenant's own doing already (`agent/claims/failures.py`).
                if one.kind not in ("files-lost", "usage-damaged"):
                    self._report("drift-found", one.detail)
            if not (mend and self._mended(one)):
                left.append(one)
        self.found = left
        self._since = {one.key: self._since.get(one.key, at) for one in left}
        return {one.key for one in left} != before

    def told(self) -> list[wire.Drift]:
        """What is still not as it should be, as the server hears it."""
        return [
            wire.Drift(
                kind=one.kind,
                claim_uid=one.claim_uid,
                # More would have the server refuse all that this node tells of.
                detail=one.detail[:2000],
                since=self._since[one.key],
                mendable=one.mend is not None,
            )
            for one in self.found
        ]

    def _mended(self, one: Found) -> bool:
        if one.mend is None:
            return False
        try:
            one.mend()
        except (PageError, OSError) as error:
            log.warning("drift-not-mended", kind=one.kind, claim=one.claim_uid, reason=str(error))
            return False
        log.info("drift-mended", kind=one.kind, claim=one.claim_uid)
        self._report("drift-repaired", f"{one.detail} It was put right.")
        return True

    def _all(self) -> Iterator[Found]:
        for holding in list(self._node.holdings.values()):
            yield from self._of_pages(holding)
            yield from self._of_processes(holding)
        for claim_uid in self._node.strangers():
            words = f"The directory of claim {claim_uid} is there, and no assignment on this node has it."
            yield Found("directory-unknown", claim_uid, words, partial(self._node.take_over, claim_uid))
        for claim_uid, reason in self._node.unreadable().items():
            yield self._unreadable(claim_uid, reason)
        living = {process for holding in self._node.holdings.values() for process in holding.members.living()}
        self._loaded = {process: path for process, path in self._loaded.items() if process in living}

    def _of_pages(self, holding: Holding) -> Iterator[Found]:
        claim = holding.claim_uid
        if lost := holding.lost:
            words = f"{' and '.join(lost).capitalize()} of claim {claim} was deleted or replaced."
            # Programs that run hold the old files; new ones in their place would have them counted as using nothing.
            runs = holding.members.any_left or holding.ending_since is not None
            yield Found("files-lost", claim, words, None if runs else partial(self._node.make_again, claim))
        elif fault := holding.usage_fault():
            runs = holding.damaged and (bool(holding.members.using_page()) or holding.ending_since is not None)
            yield Found("usage-damaged", claim, fault, None if runs else partial(self._node.repair_usage, claim))
        elif changed := holding.slots_changed():
            named = ", ".join(f"GPU-{gpu}" for gpu in changed)
            words = f"The limits page of claim {claim} was edited: of {named} it does not say what was written."
            yield Found("limits-changed", claim, words, holding.rewrite_limits)
        elif holding.is_open_to_others:
            words = f"The limits page of claim {claim} was given other permissions."
            yield Found("limits-changed", claim, words, holding.rewrite_limits)

    def _unreadable(self, claim_uid: str, reason: str) -> Found:
        directory = str(self._node.directory(claim_uid))
        runs = any(seen.directory == directory for seen in attribution.take())
        words = f"The limits page of claim {claim_uid} cannot be read: {reason}"
        # Its programs may still read it: they end first.
        return Found("limits-unreadable", claim_uid, words, None if runs else partial(self._node.make_anew, claim_uid))

    def _of_processes(self, holding: Holding) -> Iterator[Found]:
        other: dict[str, list[int]] = {}
        for process in holding.members.living():
            if process not in self._loaded:
                self._loaded[process] = processes.other_file(process, self._library)
            if path := self._loaded[process]:
                other.setdefault(path, []).append(process.pid)
        for path, pids in other.items():
            named = ", ".join(map(str, pids[:8]))
            words = (
                f"Process(es) {named} of claim {holding.claim_uid} run under {path}, not {self._library}: start anew."
            )
            yield Found("library-other", holding.claim_uid, words)
