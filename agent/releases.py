"""The end of released claims: their processes are found, signalled, and the claim ends once none is left.

Children of a process that has ended are found by nothing but a walk through all processes before its end, so signals
wait for one. It reads several files of each process, a quarter of a second on a busy machine, so it runs in a thread:
changes of limits and programs that start never wait for it.
"""

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

from agent.claims import attribution
from agent.claims.claim import ClaimRuntime
from agent.node import Node

# A walk takes a good part of a processor meanwhile.
WALK_SECONDS = 0.5


class Killed(NamedTuple):
    """Processes of a claim that did not end when they were asked to."""

    claim_uid: str
    pids: list[int]


class Walk(NamedTuple):
    """A walk through all processes."""

    # The claims that were ending when it began; and those of them of which no process was known then.
    ending: frozenset[str]
    vacant: frozenset[str]
    seen: list[attribution.ProcessInfo]


class Releases:
    """The releases of one node's claims; Node decides which claims end. The event loop's."""

    def __init__(self, node: Node, *, grace_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._node = node
        self._grace_seconds = grace_seconds
        self._clock = clock
        self._walked_at = float("-inf")
        self._walk_now = asyncio.Event()

    async def run(self, ended: Callable[[float, Walk], object]) -> None:
        """Walk whenever a release waits for it; call `ended` with the time and each walk. Never two at once."""
        while True:
            await self._walk_now.wait()
            self._walk_now.clear()
            if self._must_walk(self._clock()):
                ending = self._ending()
                vacant = [one for one in ending if not one.members.any_left]
                seen = await asyncio.to_thread(attribution.read_processes)
                ended(self._clock(), Walk(_uids(ending), _uids(vacant), seen))

    def end_processes(self, *, now: float, walk: Walk | None = None) -> list[Killed]:
        """Signal the processes of ending claims; return those that SIGKILL reached now. `walk`: one that just ended."""
        if walk is None and self._must_walk(now):
            self._walk_now.set()
            return []
        if walk is not None:
            self._walked_at = now
            found = [one for one in self._ending() if one.claim_uid in walk.ending]
            self._node.set_attributed(found, walk.seen, now=now)
        killed = []
        for runtime in (one for one in self._ending() if one.attributed_at is not None):
            victims = runtime.end(now=now, grace_seconds=self._grace_seconds)
            if victims:
                killed.append(Killed(runtime.claim_uid, [process.pid for process in victims]))
            # The last process may have started another just before it ended: a walk that began later finds that one.
            if walk is not None and runtime.claim_uid in walk.vacant and not runtime.members.any_left:
                self._node.finish(runtime)
        return killed

    def _ending(self) -> list[ClaimRuntime]:
        return [one for one in self._node.runtimes.values() if one.ending_since is not None]

    def _must_walk(self, now: float) -> bool:
        """Return True now and then, at once if a release begins, no process is left, or a killed one may fork."""
        ending = self._ending()
        return bool(ending) and (
            now - self._walked_at >= WALK_SECONDS
            or any(
                one.attributed_at is None or not one.members.any_left or now - one.ending_since >= self._grace_seconds
                for one in ending
                if one.ending_since is not None
            )
        )


def _uids(runtimes: list[ClaimRuntime]) -> frozenset[str]:
    return frozenset(one.claim_uid for one in runtimes)
