"""Schedulers: the product's own cycles without their database, and first come, first served.

`Rounds` does what the scheduling service does: candidates by what may have changed, the core's order, the blocked head
and its reservation, and refusals remembered until something that could change them was freed.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import islice
from typing import Protocol

from apps.scheduling.core import gangs
from apps.scheduling.core.backfill import BlockedHead, ExpectedRelease
from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.queue import Amounts, Ask, Queue, QueueEntry
from apps.scheduling.core.values import NOTHING, GpuState, Held, Placed, Refused, Request
from benchmarks.churn.load import Arrival

# Claims of a tenant with equal requests that are tried per cycle: a refusal of the first holds for the others.
ALIKE = 32
# The pool's default.
PATIENCE_SECONDS = 14_400.0

Started = list[tuple[Arrival, tuple[str, ...]]]


class Scheduler(Protocol):
    """A scheduler that is told of arrivals and ends, and decides starts."""

    def arrive(self, claim: Arrival) -> None:
        """Queue a claim."""

    def end(self, claim: Arrival, gpus: tuple[str, ...]) -> None:
        """Free a claim's GPUs."""

    def round(self, now: float) -> Started:
        """Return the claims that start now, with their GPUs."""


class Rounds:
    """The product's scheduling cycles."""

    def __init__(self, gpus: Iterable[GpuState], *, patience_seconds: float | None = PATIENCE_SECONDS) -> None:
        self._patience_seconds = patience_seconds
        self._fleet = Fleet(gpus)
        self._states = {gpu.uuid: gpu for gpu in self._fleet.gpus()}
        self._capacity = Amounts(100 * len(self._states), 0, len(self._states))
        self._held: dict[str, Amounts] = defaultdict(Amounts)
        self._running: dict[str, ExpectedRelease] = {}
        self._blocked = BlockedHead(self._ending)
        self._claims: dict[int, Arrival] = {}
        # A tenant's equal claims, oldest first.
        self._lines: dict[tuple[Request, str], dict[int, Ask]] = defaultdict(dict)
        self._no_room: set[Request] = set()

    def arrive(self, claim: Arrival) -> None:
        """Queue a claim."""
        self._fleet.learn(claim.request)
        waiting = QueueEntry(
            f"{claim.number:08}", claim.tenant, claim.request, claim.number,
            time_limit_seconds=claim.time_limit_seconds, waits_since=claim.at,
        )  # fmt: skip
        self._claims[claim.number] = claim
        self._lines[claim.request, claim.tenant][claim.number] = Ask((waiting,))

    def end(self, claim: Arrival, gpus: tuple[str, ...]) -> None:
        """Free a claim's GPUs, and forget refusals that this may change."""
        self._fleet.give_back(gpus, claim.request)
        self._running.pop(f"{claim.number:08}", None)
        self._held[claim.tenant] -= Amounts.of(claim.request)
        for uuid in gpus:
            state = self._carries(uuid, claim.request, -1)
            self._blocked.record_change(state)
            self._no_room = {kind for kind in self._no_room if not state.could_help(kind)}

    def round(self, now: float) -> Started:
        """Try the claims whose answer may have changed."""
        started: Started = []
        blocked = self._blocked
        if blocked.head is None and (first := self._first_refused()) is not None:
            blocked.record_refusal(first)
        blocked.refresh(self._fleet, self._states, _nothing_reserved, now=now)
        more = True
        while more:
            placed = self._walk(now)
            started += placed
            more = len(placed) >= ALIKE
        return started

    def _walk(self, now: float) -> Started:
        started: Started = []
        kept_out = self._blocked.held_back_keys()
        asks: list[Ask] = []
        for (kind, _), line in self._lines.items():
            if line and kind not in self._no_room:
                asks += islice((ask for number, ask in line.items() if number not in kept_out), ALIKE)
        long_before = None if self._patience_seconds is None else now - self._patience_seconds
        queue = Queue(asks, capacity=self._capacity, held=self._held, weights={}, long_before=long_before)
        while (ask := queue.next()) is not None:
            if ask.members[0].request in self._no_room:
                continue
            placed = self._ask(ask, now)
            if placed is not None:
                queue.record_placement(ask)
                started.append((self._claims.pop(ask.since), placed))
        return started

    def _ask(self, ask: Ask, now: float) -> tuple[str, ...] | None:
        waiting, blocked = ask.members[0], self._blocked
        blocked.refresh(self._fleet, self._states, _nothing_reserved, now=now)
        guard = blocked.withheld_from(ask, now=now)
        answer = gangs.place_all(self._fleet, ask, held=guard)
        if isinstance(answer, Refused):
            if guard and blocked.explain_refusal(self._fleet, ask, held=NOTHING):
                blocked.hold_back(ask)
                return None
            blocked.record_refusal(ask)
            self._no_room.add(waiting.request)
            return None
        self._take(waiting, answer[0], now)
        blocked.record_placement(ask, answer, now=now)
        blocked.remove_claim(waiting.since, waiting.id)
        return answer[0].gpus

    def _take(self, waiting: QueueEntry, placed: Placed, now: float) -> None:
        request = waiting.request
        self._fleet.take(placed.gpus, request)
        self._held[waiting.tenant] += Amounts.of(request)
        for uuid in placed.gpus:
            self._carries(uuid, request, 1)
        if (limit := waiting.time_limit_seconds) is not None:
            self._running[waiting.id] = ExpectedRelease(now + limit, waiting.id, placed.gpus, request, waiting.tenant)
        del self._lines[request, waiting.tenant][waiting.since]

    def _carries(self, uuid: str, request: Request, sign: int) -> GpuState:
        state = self._states[uuid]
        self._states[uuid] = state = replace(state, core_free=state.core_free - sign * request.core_request)
        return state

    def _first_refused(self) -> Ask | None:
        firsts = [
            next(iter(line.values())) for (kind, _), line in self._lines.items() if line and kind in self._no_room
        ]
        return min(firsts, key=lambda ask: ask.since, default=None)

    def _ending(self, _gpus: Collection[str], now: float) -> Iterable[ExpectedRelease]:
        return [replace(item, ends_at=max(now, item.ends_at)) for item in self._running.values()]


class Fifo:
    """First come, first served.

    Strict: a claim that does not fit blocks all later ones; or passing: the next one that fits goes first.
    """

    def __init__(self, gpus: Iterable[GpuState], policy: str, *, passing: bool) -> None:
        self._fleet, self._passing = Fleet(gpus, policy=policy), passing
        self._waiting: dict[int, Arrival] = {}
        self._by_kind: dict[Request, dict[int, Arrival]] = defaultdict(dict)
        self._no_room: set[Request] = set()

    def arrive(self, claim: Arrival) -> None:
        """Queue a claim."""
        self._fleet.learn(claim.request)
        self._waiting[claim.number] = claim
        self._by_kind[claim.request][claim.number] = claim

    def end(self, claim: Arrival, gpus: tuple[str, ...]) -> None:
        """Free a claim's GPUs: any claim may fit now."""
        self._fleet.give_back(gpus, claim.request)
        self._no_room.clear()

    def round(self, _now: float) -> Started:
        """Start the oldest first, one by one."""
        started: Started = []
        while (claim := self._next()) is not None:
            answer = self._fleet.place(claim.request)
            if isinstance(answer, Placed):
                self._fleet.take(answer.gpus, claim.request)
                del self._waiting[claim.number], self._by_kind[claim.request][claim.number]
                started.append((claim, answer.gpus))
            else:
                self._no_room.add(claim.request)
        return started

    def _next(self) -> Arrival | None:
        if not self._passing:
            first = next(iter(self._waiting.values()), None)
            return None if first is None or first.request in self._no_room else first
        lines = (line for kind, line in self._by_kind.items() if line and kind not in self._no_room)
        firsts = (next(iter(line.values())) for line in lines)
        return min(firsts, key=lambda claim: claim.number, default=None)


def _nothing_reserved(_ask: Ask) -> Held:
    return NOTHING
