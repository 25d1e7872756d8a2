"""Failures of a claim, each reported once: broken files, processes that do not end or were ended, long kernels."""

from collections.abc import Mapping
from typing import NamedTuple

from agent import wire
from agent.claims.claim import ClaimRuntime

# A process that SIGKILL does not end within seconds blocks in the kernel, maybe for hours.
STUCK_SECONDS = 5.0
# A tenant that breaks and repairs its page in a loop must not fill the log of the whole platform.
AGAIN_SECONDS = 60.0
NAMED = 8


class ClaimFailure(NamedTuple):
    """One failure of a claim, in words; the code is the event's."""

    claim_uid: str
    code: str
    detail: str
    # One of the claim's; None: of none in particular.
    assignment_uid: str | None = None


class ClaimFailures:
    """The failures of one node's claims that were reported. `longest_kernel_ms`: the pool's bound; 0: none."""

    def __init__(self, *, grace_seconds: float) -> None:
        self.longest_kernel_ms = 0
        self._killed_after_seconds = grace_seconds
        self._reported_at: dict[tuple[str, str], float] = {}

    def take_new(self, runtimes: Mapping[str, ClaimRuntime], *, now: float) -> list[ClaimFailure]:
        """Return the present failures that were not reported within AGAIN_SECONDS."""
        self._reported_at = {key: at for key, at in self._reported_at.items() if key[0] in runtimes}
        found = [failure for runtime in runtimes.values() for failure in self._of(runtime, now)]
        fresh = [one for one in found if now - self._reported_at.get(one[:2], float("-inf")) >= AGAIN_SECONDS]
        # A lasting failure is reported once; it is new again only after it was gone for a while.
        self._reported_at |= {one[:2]: now for one in found}
        return fresh + [_kept_lent(runtime) for runtime in runtimes.values() if runtime.kept_lent]

    def _of(self, runtime: ClaimRuntime, now: float) -> list[ClaimFailure]:
        uid, found = runtime.claim_uid, []
        if runtime.lost:
            words = f"In {runtime.directory}, {' and '.join(runtime.lost)} of claim {uid} was deleted or replaced."
            more = "Its programs go on under their last limits, new ones are refused until these have ended."
            found.append(ClaimFailure(uid, "claim-files-lost", f"{words} {more}"))
        if runtime.damaged:
            words = f"The usage page of claim {uid} is damaged: one of its programs cut it or wrote over it."
            words += " Programs that run on it keep their limits, and the claim counts as using all that it may."
            more = "New ones are refused until these have ended: then the page is made anew."
            found.append(ClaimFailure(uid, "usage-page-damaged", f"{words} {more}"))
        if runtime.full:
            words = f"All places in the usage page of claim {uid} are taken: its next process gets no GPU."
            found.append(ClaimFailure(uid, "usage-page-full", words))
        found += self._long_kernel(runtime)
        since = runtime.ending_since
        if since is not None and now - since >= self._killed_after_seconds + STUCK_SECONDS:
            pids = [process.pid for process in runtime.members.living()]
            if pids:
                stuck = describe_processes(pids)
                words = f"{stuck} of claim {uid} got SIGKILL {STUCK_SECONDS:g} s ago and still live in the kernel."
                found.append(
                    ClaimFailure(uid, "process-stuck", f"{words} Until they end, their share is not given back.")
                )
        return found

    def _long_kernel(self, runtime: ClaimRuntime) -> list[ClaimFailure]:
        """Return that a best-effort claim runs kernels that keep the GPU from others longer than the pool wants."""
        longest_us = max(
            (
                runtime.totals[slot.gpu].longest_kernel_us
                for slot in runtime.slots.values()
                if slot.sharing.best_effort and slot.gpu in runtime.totals
            ),
            default=0,
        )
        if not self.longest_kernel_ms or longest_us <= self.longest_kernel_ms * 1000:
            return []
        words = f"A kernel or graph of best-effort claim {runtime.claim_uid} takes {longest_us / 1000:.1f} ms. "
        words += f"The pool wants at most {self.longest_kernel_ms} ms: nothing can interrupt it, and claims with a "
        words += "guarantee wait for its end. Launch smaller pieces: smaller batches, or shorter graphs."
        return [ClaimFailure(runtime.claim_uid, wire.LONG_KERNEL, words, next(iter(runtime.slots)))]


def _kept_lent(runtime: ClaimRuntime) -> ClaimFailure:
    """Return that these processes were ended; each is named once."""
    ended = describe_processes(sorted({process.pid for process in runtime.kept_lent}))
    runtime.kept_lent = []
    words = f"{ended} of claim {runtime.claim_uid} got SIGKILL: borrowed memory did not leave the GPU for seconds, "
    words += "while a claim to which it is promised waited. "
    words += "A kernel that runs for so long, or a stream capture that does not end, keeps it there."
    return ClaimFailure(runtime.claim_uid, wire.LENT_MEMORY_KEPT, words, next(iter(runtime.slots), None))


def describe_processes(pids: list[int]) -> str:
    """Return the processes in words, at most NAMED of them by number."""
    numbers = ", ".join(map(str, pids[:NAMED]))
    if len(pids) == 1:
        return f"Process {numbers}"
    more = f" and {len(pids) - NAMED} more" if len(pids) > NAMED else ""
    return f"{len(pids)} processes ({numbers}{more})"
