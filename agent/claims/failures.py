"""What is wrong with a claim, told once: files that its tenant broke, processes that do not end."""

from collections.abc import Mapping
from typing import NamedTuple

from agent.claims.claim import Holding

# What SIGKILL does not end within seconds sits in the kernel, maybe for hours.
STUCK_SECONDS = 5.0
# A tenant that breaks and mends its page in a loop must not fill the log of the whole platform.
AGAIN_SECONDS = 60.0
NAMED = 8


class Trouble(NamedTuple):
    """One claim's, in words; the code is the event's."""

    claim_uid: str
    code: str
    detail: str


class Troubles:
    """What was told of the claims of a node."""

    def __init__(self, *, grace_seconds: float) -> None:
        self._killed_after_seconds = grace_seconds
        self._told_at: dict[tuple[str, str], float] = {}

    def news(self, holdings: Mapping[str, Holding], *, now: float) -> list[Trouble]:
        """What is wrong now and was not told lately."""
        self._told_at = {key: at for key, at in self._told_at.items() if key[0] in holdings}
        found = [trouble for holding in holdings.values() for trouble in self._of(holding, now)]
        fresh = [one for one in found if now - self._told_at.get(one[:2], float("-inf")) >= AGAIN_SECONDS]
        # What goes on is told once; only what was over for a while is news again.
        self._told_at |= {one[:2]: now for one in found}
        return fresh

    def _of(self, holding: Holding, now: float) -> list[Trouble]:
        uid, found = holding.claim_uid, []
        if holding.lost:
            words = f"In {holding.directory}, {' and '.join(holding.lost)} of claim {uid} was deleted or replaced."
            more = "Its programs go on under their last limits, new ones are refused until these have ended."
            found.append(Trouble(uid, "claim-files-lost", f"{words} {more}"))
        if holding.damaged:
            words = f"The usage page of claim {uid} is damaged: one of its programs cut it or wrote over it."
            words += " Programs that run on it keep their limits, and the claim counts as using all that it may."
            more = "New ones are refused until these have ended: then the page is made anew."
            found.append(Trouble(uid, "usage-page-damaged", f"{words} {more}"))
        if holding.full:
            words = f"All places in the usage page of claim {uid} are taken: its next process gets no GPU."
            found.append(Trouble(uid, "usage-page-full", words))
        since = holding.ending_since
        if since is not None and now - since >= self._killed_after_seconds + STUCK_SECONDS:
            pids = [process.pid for process in holding.members.living()]
            if pids:
                words = (
                    f"{named(pids)} of claim {uid} got SIGKILL {STUCK_SECONDS:g} s ago and still live in the kernel."
                )
                found.append(Trouble(uid, "process-stuck", f"{words} Until they end, their share is not given back."))
        return found


def named(pids: list[int]) -> str:
    """Processes in words; some of them by number."""
    numbers = ", ".join(map(str, pids[:NAMED]))
    if len(pids) == 1:
        return f"Process {numbers}"
    more = f" and {len(pids) - NAMED} more" if len(pids) > NAMED else ""
    return f"{len(pids)} processes ({numbers}{more})"
