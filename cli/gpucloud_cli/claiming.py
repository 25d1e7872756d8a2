"""A claim's life on the client: created, waited for, renewed, released."""

import threading
import time
from collections.abc import Callable
from typing import Any

from gpucloud_cli import output, verbs
from gpucloud_cli.amounts import duration_text
from gpucloud_cli.api import Api
from gpucloud_cli.failures import Failure, Problem, Unreachable, WaitRanOut
from gpucloud_cli.resources import BY_NAME

Claim = dict[str, Any]
# A claim that fits at once is in force within tenths of a second; a queued one is polled every two seconds.
FIRST_LOOK_SECONDS, LONGEST_LOOK_SECONDS = 0.1, 2.0
# Readers of a pipeline's log want to see that it still waits.
REMIND_SECONDS = 60.0
BASES = {"time-limits": "the time limits of what runs", "recent-rate": "what was given back lately"}
# What a claim without reasons waits for, by its state.
NOT_YET = "its turn has not come yet"
NEXT = {
    "assigned": "its node puts it in force",
    "suspending": "its programs leave their GPUs",
    "releasing": "its programs end",
}
# Fraction of a lease between two renewals: four may fail before it lapses.
RENEW_PART = 5


class Ended(Failure):
    """The claim ended during the wait for it."""


class Refused(Failure):
    """The node could not suspend, resume or move the claim, which stays as it was."""


def path_of(uid: str) -> str:
    """Return the claim's path in the API.

    Raises Usage.
    """
    return verbs.path_of(BY_NAME["claim"], None, uid)


def await_active(
    api: Api,
    claim: Claim,
    *,
    seconds: float,
    sleep: Callable[[float], None] = time.sleep,
    until: str = "active",
    refused: str | None = None,
) -> Claim:
    """Return the claim once its limits are in force, or it is in the state `until`; print meanwhile why it waits.

    Raises WaitRanOut, Ended, or Refused once it is in the state `refused`. An unreachable server is waited for too: the
    claim keeps its place in the queue.
    """
    started = time.monotonic()
    pause, watched = FIRST_LOOK_SECONDS, Watched()
    while True:
        if claim["state"] == until and claim["observed_generation"] >= claim["generation"]:
            return claim
        if claim["state"] == refused:
            raise Refused(f"Claim {claim['uid']} is {claim['state']}: {why(claim, otherwise='it was asked to be')}.")
        if claim["state"] in ("failed", "releasing", "released"):
            raise Ended(f"Claim {claim['uid']} is {claim['state']}: {why(claim, otherwise='it was ended')}.")
        waited = time.monotonic() - started
        watched.tell(claim, waited)
        if waited >= seconds:
            raise WaitRanOut(
                f"Claim {claim['uid']} is still {claim['state']} after {duration_text(round(waited))}: {why(claim)}."
            )
        sleep(min(pause, max(seconds - waited, 0.01)))
        pause = min(1.5 * pause, LONGEST_LOOK_SECONDS)
        try:
            claim = api.get(path_of(claim["uid"])).body
        except Unreachable as lost:
            watched.note(str(lost))


class Watched:
    """The last message about the wait, so that nothing is printed twice a second."""

    def __init__(self) -> None:
        self._said, self._at = "", 0.0

    def tell(self, claim: Claim, waited: float) -> None:
        """Print state, position, reasons and expected start when they change, and once a minute."""
        if waited < 1:
            return
        reason = why(claim, otherwise=NEXT.get(claim["state"], NOT_YET))
        words = " · ".join([claim["state"], *place(claim), reason])
        # An estimate by rate changes all the time, and is not news.
        self.note(f"waiting: {words}", more=" · ".join(outlook(claim)), waited=waited)

    def note(self, words: str, *, more: str = "", waited: float | None = None) -> None:
        """Print a message unless it was the last one, less than a minute ago."""
        now = time.monotonic()
        if words == self._said and now - self._at < REMIND_SECONDS:
            return
        self._said, self._at = words, now
        words = f"{words} · {more}" if more else words
        output.say(words if waited is None else f"{words} ({duration_text(round(waited))})")


def place(claim: Claim) -> list[str]:
    """Return the position in the pool's queue, once the server reports it."""
    if claim.get("queue_position") is None:
        return []
    return [f"place {claim['queue_position']} of {claim['queue_length']} in the queue"]


def outlook(claim: Claim) -> list[str]:
    """Return the expected start, its basis, and the size that would start now instead."""
    estimate = claim.get("estimate") or {}
    words = [f"expected at {estimate['at']}, by {BASES[estimate['basis']]}"] if estimate.get("at") else []
    return words + [item["detail"].rstrip(".") for item in claim.get("suggestions", ())]


def why(claim: Claim, *, otherwise: str = NOT_YET) -> str:
    """Return why the claim waits or failed, in the server's words."""
    reasons = [reason["detail"] for reason in claim["reasons"]]
    reasons += [item["reason"] for item in claim["assignments"] if item.get("reason")]
    return "; ".join(reason.rstrip(".") for reason in reasons) or otherwise


def release(api: Api, uid: str, *, wait_seconds: int) -> str:
    """Release the claim, wait for the node to confirm, and return the claim's state.

    Raises Failure. A claim that is missing (or not visible to this token) was not released: claims stay as history.
    """
    claim = api.delete(path_of(uid), wait=wait_seconds).body
    if claim is None:
        raise Failure(f"There is no claim {uid} that you may see.")
    return str(claim["state"])


class Lease(threading.Thread):
    """A thread that renews a claim's lease, so that a slow server never delays the main thread.

    `lost` says why the claim is no longer ours, once that is so.
    """

    def __init__(self, api: Api, claim: Claim, *, on_lost: Callable[[str], None] = output.say) -> None:
        super().__init__(name="lease", daemon=True)
        self._api, self._uid = api, claim["uid"]
        self._every_seconds = claim["lease_seconds"] / RENEW_PART
        self._on_lost = on_lost
        self._over = threading.Event()
        self.lost: str | None = None

    def run(self) -> None:
        """Renew until `stop`, or until the claim is gone."""
        failing = False
        while not self._over.wait(self._every_seconds):
            try:
                self._api.post(f"{path_of(self._uid)}renew/", {})
                if failing:
                    output.say("the server answers again; the lease is renewed")
                failing = False
            except Problem as problem:
                self._end(str(problem))
                return
            except Failure as failure:
                if not failing and not self._over.is_set():
                    output.say(f"the lease could not be renewed, trying on: {failure}")
                failing = True

    def stop(self) -> None:
        """Prevent further renewals."""
        self._over.set()

    def _end(self, words: str) -> None:
        if not self._over.is_set():
            self.lost = words
            self._on_lost(f"claim {self._uid} is no longer held: {words}")
