"""The detection and repair of drift: state on this machine that differs from what the agent wrote.

Somebody edits a limits page or deletes a file, a directory appears that no assignment has, a program runs under another
library. The agent's own step would not see it: it compares the wanted state with what it believes it wrote. So
everything is read anew every few seconds, from the disk and from /proc.

A repair leaves running programs as they are: a page is written again in place. A repair that needs them to end waits
until they have; a drift that only an operator can repair is reported.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from agent import wire
from agent.claims import attribution
from agent.claims.abi import PageError
from agent.claims.claim import ClaimRuntime
from agent.host import processes
from agent.host.processes import Process
from agent.logs import log
from agent.node import Node

# Per check: a node on which everything is wrong must not fill frames, or the log of the whole platform.
MOST = wire.MAX_DRIFTS
# Reads of the mappings of a program: the first may come before its libraries are loaded.
LOOKS = 2


class DriftFinding(NamedTuple):
    """One drift."""

    kind: wire.DriftKind
    claim_uid: str
    detail: str
    # The repair; None if the agent cannot repair it. Raises PageError, OSError.
    repair: Callable[[], None] | None = None

    @property
    def key(self) -> tuple[str, str]:
        """The identity of the drift across checks."""
        return self.kind, self.claim_uid


class Loaded(NamedTuple):
    """A process: its program, and the other library that it maps, if any."""

    image: tuple[str, str]
    other: str | None
    looks: int


class Drifts:
    """The drifts of one node. `report` sends each to the server once, and once more when it was repaired."""

    def __init__(self, node: Node, library: Path, *, report: Callable[[str, str], None]) -> None:
        self._node = node
        self._library = library
        self._report = report
        self._since: dict[tuple[str, str], float] = {}
        self._loaded: dict[Process, Loaded] = {}
        self.found: list[DriftFinding] = []

    def check(self, *, at: float, repair: bool) -> bool:
        """Read everything anew and repair what can be repaired, if `repair`; return True if the drifts changed."""
        before = {one.key for one in self.found}
        left = []
        for one in list(self._find_all())[:MOST]:
            if one.key not in before:
                log.warning("drift", kind=one.kind, claim=one.claim_uid, detail=one.detail)
                # These are reported as the tenant's own doing already (`agent/claims/failures.py`).
                if one.kind not in ("files-lost", "usage-damaged"):
                    self._report("drift-found", one.detail)
            if not (repair and self._repair(one)):
                left.append(one)
        self.found = left
        self._since = {one.key: self._since.get(one.key, at) for one in left}
        return {one.key for one in left} != before

    def to_wire(self) -> list[wire.Drift]:
        """Return the drifts that remain, in the wire's form."""
        return [
            wire.Drift(
                kind=one.kind,
                claim_uid=one.claim_uid,
                # The server would refuse a report with a longer text.
                detail=one.detail[:2000],
                since=self._since[one.key],
                mendable=one.repair is not None,
            )
            for one in self.found
        ]

    def _repair(self, one: DriftFinding) -> bool:
        if one.repair is None:
            return False
        try:
            one.repair()
        except (PageError, OSError) as error:
            log.warning("drift-not-mended", kind=one.kind, claim=one.claim_uid, reason=str(error))
            return False
        log.info("drift-mended", kind=one.kind, claim=one.claim_uid)
        self._report("drift-repaired", f"{one.detail} It was repaired.")
        return True

    def _find_all(self) -> Iterator[DriftFinding]:
        for runtime in list(self._node.runtimes.values()):
            yield from self._check_pages(runtime)
            yield from self._check_processes(runtime)
        for claim_uid in self._node.unknown_directories():
            words = f"The directory of claim {claim_uid} is there, and no assignment on this node has it."
            yield DriftFinding("directory-unknown", claim_uid, words, partial(self._node.take_over, claim_uid))
        for claim_uid, reason in self._node.unreadable().items():
            yield self._unreadable(claim_uid, reason)
        living = {process for runtime in self._node.runtimes.values() for process in runtime.members.living()}
        self._loaded = {process: loaded for process, loaded in self._loaded.items() if process in living}

    def _check_pages(self, runtime: ClaimRuntime) -> Iterator[DriftFinding]:
        claim = runtime.claim_uid
        if lost := runtime.lost:
            words = f"{' and '.join(lost).capitalize()} of claim {claim} was deleted or replaced."
            # Running programs have the old files mapped; with new ones in their place their use would count as nothing.
            runs = runtime.members.any_left or runtime.ending_since is not None
            yield DriftFinding("files-lost", claim, words, None if runs else partial(self._node.remake_pages, claim))
        elif fault := runtime.usage_fault():
            runs = runtime.damaged and (bool(runtime.members.using_page()) or runtime.ending_since is not None)
            yield DriftFinding("usage-damaged", claim, fault, None if runs else partial(self._node.repair_usage, claim))
        elif changed := runtime.slots_changed():
            named = ", ".join(f"GPU-{gpu}" for gpu in changed)
            words = f"The limits page of claim {claim} was edited: of {named} it does not say what was written."
            yield DriftFinding("limits-changed", claim, words, runtime.rewrite_limits)
        elif runtime.is_open_to_others:
            words = f"The limits page of claim {claim} was given other permissions."
            yield DriftFinding("limits-changed", claim, words, runtime.rewrite_limits)

    def _unreadable(self, claim_uid: str, reason: str) -> DriftFinding:
        directory = str(self._node.directory(claim_uid))
        runs = any(seen.directory == directory for seen in attribution.read_processes())
        words = f"The limits page of claim {claim_uid} cannot be read: {reason}"
        # Its programs may still read it: they end first.
        return DriftFinding(
            "limits-unreadable", claim_uid, words, None if runs else partial(self._node.make_anew, claim_uid)
        )

    def _find_other_library(self, process: Process) -> str | None:
        """Return the path of another library of this name that the process maps; None if it maps ours, or none.

        A process that executes another program keeps its pid and its start.
        """
        image, known = processes.image_of(process), self._loaded.get(process)
        if known is None or known.image != image:
            known = Loaded(image, None, 0)
        if known.looks < LOOKS:
            known = Loaded(image, processes.other_file(process, self._library), known.looks + 1)
        self._loaded[process] = known
        return known.other

    def _check_processes(self, runtime: ClaimRuntime) -> Iterator[DriftFinding]:
        other: dict[str, list[int]] = {}
        for process in runtime.members.living():
            if path := self._find_other_library(process):
                other.setdefault(path, []).append(process.pid)
        for path, pids in other.items():
            named = ", ".join(map(str, pids[:8]))
            words = (
                f"Process(es) {named} of claim {runtime.claim_uid} run under {path}, not {self._library}: start anew."
            )
            yield DriftFinding("library-other", runtime.claim_uid, words)
