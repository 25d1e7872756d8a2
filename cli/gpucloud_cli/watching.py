"""The watch over the claim of a running program: notices as they come, and the cause if the claim ends first."""

import threading
from typing import Any

from gpucloud_cli import claiming, output
from gpucloud_cli.api import Api
from gpucloud_cli.failures import Failure

Claim = dict[str, Any]
ON_ITS_GPUS = ("assigned", "active", "failed", "suspending", "suspended", "resuming")
# A notice comes 30 s before the end by default.
LOOK_SECONDS = 3.0
NOTICES = {
    "preempt_at": "is preempted",
    "yields_at": "ends, as its room is reserved,",
    "idle_release_at": "is released or suspended as idle",
}


class ClaimWatch(threading.Thread):
    """A thread that reads the claim every few seconds while its program runs, and prints what happens to it.

    `cause` says why the claim is no longer the program's, once that is so.
    """

    def __init__(self, api: Api, claim: Claim) -> None:
        super().__init__(name="watch", daemon=True)
        self._api, self._uid = api, claim["uid"]
        self._assignments = _assignments(claim)
        self._told: dict[str, Any] = {name: claim.get(name) for name in NOTICES}
        self._reachable, self._notice = True, ""
        self._over = threading.Event()
        self._reading = threading.Lock()
        self.cause: str | None = None
        # The node to which it moves, where its program must be started again.
        self.moves_to: str | None = None

    def run(self) -> None:
        """Look until `stop`, or until the claim has ended."""
        while self.cause is None and not self._over.wait(LOOK_SECONDS):
            self.read_claim()

    def stop(self) -> None:
        """End the thread."""
        self._over.set()

    def read_claim(self) -> None:
        """Read the claim once; a server that does not answer is no news."""
        with self._reading:
            if self.cause is not None:
                return
            try:
                claim = self._api.get(claiming.path_of(self._uid)).body
            except Failure:
                return
            self._tell_notices(claim)
            self._tell_end(claim)

    def _tell_notices(self, claim: Claim) -> None:
        for name, words in NOTICES.items():
            at = claim.get(name)
            if at == self._told[name]:
                continue
            self._told[name] = at
            if at is None:
                self._notice = ""
                output.say(f"claim {self._uid} stays: the notice is withdrawn")
            else:
                self._notice = claiming.why(claim, otherwise=f"notice of its end at {at}")
                output.say(f"notice: claim {self._uid} {words} at {at}: {self._notice}")
        if (reachable := claim.get("reachable")) is not None and reachable != self._reachable:
            self._reachable = reachable
            output.say(f"the node of claim {self._uid} is {'reachable again' if reachable else 'unreachable'}")

    def _tell_end(self, claim: Claim) -> None:
        state = claim["state"]
        if claim.get("moves_to") not in (None, self.moves_to):
            self.moves_to = claim["moves_to"]
            then = (
                "its running programs are carried, and go on there without this command"
                if claim.get("moves_by") == "carry"
                else f"its programs save their state and end; start them there with `gpucloud claim exec {self._uid} "
                "-- COMMAND`"
            )
            output.say(f"claim {self._uid} moves to node {self.moves_to}: {then}")
        if state in ON_ITS_GPUS and _assignments(claim) & self._assignments:
            self.moves_to = claim.get("moves_to")
            return
        where = "placed again elsewhere" if state in ("assigned", "active") else state
        if self.moves_to is not None and state == "active":
            where = f"on node {self.moves_to} now"
        self.cause = claiming.why(claim, otherwise=self._notice or f"it is {where}")
        output.say(f"claim {self._uid} has ended under the program: {self.cause}")


def _assignments(claim: Claim) -> frozenset[str]:
    return frozenset(item["uid"] for item in claim["assignments"] if item["state"] != "releasing")
