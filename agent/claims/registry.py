"""The processes that were registered through agent.sock, by claim; remembered across restarts of the agent.

A registered process need not have touched a GPU yet, so the pages may not know it; a release must end it all the same.
"""

from pathlib import Path

from agent import statefile
from agent.host import processes
from agent.host.processes import Process
from agent.logs import log


class Registry:
    """Registered processes by claim, stored in one file of the run directory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._claims: dict[str, set[Process]] = {}
        try:
            stored = statefile.read(path, dict[str, list[tuple[int, int]]]) or {}
        except statefile.Damaged as error:
            log.warning("registry-damaged", reason=str(error))
            stored = {}
        for claim, pairs in stored.items():
            self._claims[claim] = {Process(*pair) for pair in pairs}

    def add(self, claim_uid: str, process: Process) -> None:
        """Record the process, on disk before this returns. Raises OSError."""
        self._claims.setdefault(claim_uid, set()).add(process)
        self._store()

    def find_registered(self, claim_uid: str) -> set[Process]:
        """Return the claim's processes that were living when they were last checked."""
        return self._claims.get(claim_uid, set())

    def living(self, claim_uid: str) -> set[Process]:
        """Return the claim's registered processes that live; forget the others."""
        registered = self._claims.get(claim_uid)
        if not registered:
            return set()
        living = {process for process in registered if processes.alive(process)}
        if living != registered:
            self._claims[claim_uid] = living
            self._try_store()
        return living

    def drop(self, claim_uid: str) -> None:
        """Forget a claim that has ended."""
        if self._claims.pop(claim_uid, None) is not None:
            self._try_store()

    def _try_store(self) -> None:
        # A list with dead processes in it does no harm: every reader checks that they live.
        try:
            self._store()
        except OSError as error:
            log.warning("registry-not-stored", reason=str(error))

    def _store(self) -> None:
        statefile.write(self._path, {claim: sorted(members) for claim, members in self._claims.items() if members})
