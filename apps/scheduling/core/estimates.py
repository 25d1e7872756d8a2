"""Estimates of the start of waiting claims, and their basis.

First by time limits: the queue is simulated, from one known end to the next, by the same walk that rounds make. If that
leads nowhere, by the rate at which claims of at least this size were released lately. If that is too thin, there is no
estimate, and a sentence says why: no estimate is honest, a guess is not.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from apps.scheduling.core.backfill import ExpectedRelease
from apps.scheduling.core.fair_share import Past
from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.gangs import ready
from apps.scheduling.core.queue import Amounts, Ask, Queue, QueueEntry
from apps.scheduling.core.values import NOTHING, Held, Refused, Request
from apps.scheduling.core.walk import Walk

# The cost of one forecast: this many claims, simulated over this many moments.
MOST_CLAIMS = 100
MOST_MOMENTS = 200
# The ends of running claims examined in all, and at each moment for the head: soonest first.
MOST_ENDS, MOST_ENDS_AHEAD = 1000, 100
# Two could be chance; three released claims are the beginning of a rate.
FEWEST_FREED = 3

Basis = Literal["time-limits", "recent-rate", "none"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimate: `at` in Unix seconds; None if it cannot be estimated. `detail` says how it was made."""

    at: float | None
    basis: Basis
    detail: str


@dataclass(frozen=True, slots=True)
class Release:
    """A recent release of a claim."""

    at: float
    request: Request


@dataclass(frozen=True, slots=True)
class Standing:
    """The facts about a pool and its tenants that an order needs."""

    capacity: Amounts
    held: Mapping[str, Amounts]
    weights: Mapping[str, int]
    # Claims that have waited longer go by age; None: no claim.
    patience_seconds: float | None = None
    # What each tenant held on average in the past; empty unless the pool's fair share remembers.
    past: Mapping[str, Past] = field(default_factory=dict)

    def queue(self, asks: Iterable[Ask], *, now: float, held: Mapping[str, Amounts] | None = None) -> Queue:
        """Return these asks in their order at that moment."""
        long_before = None if self.patience_seconds is None else now - self.patience_seconds
        held = self.held if held is None else held
        return Queue(
            asks, capacity=self.capacity, held=held, weights=self.weights, long_before=long_before, past=self.past
        )


def _nothing_reserved(claim: QueueEntry, now: float) -> Held:
    return NOTHING


def forecast(
    fleet: Fleet,
    waiting: Sequence[QueueEntry],
    running: Iterable[ExpectedRelease],
    standing: Standing,
    *,
    now: float,
    reserved: Callable[[QueueEntry, float], Held] = _nothing_reserved,
    changes: Iterable[float] = (),
) -> dict[str, float]:
    """Return the starts of these claims, by id, as far as time limits tell. Uses the fleet up.

    `reserved` returns the amounts withheld from a claim at a moment, `changes` are the moments at which they change.
    """
    later = sorted({at for at in changes if at > now})
    ends = heapq.nsmallest(MOST_ENDS, ((max(item.ends_at, now), item.id, item) for item in running))
    starts: dict[str, float] = {}
    held = dict(standing.held)
    left = list(waiting[:MOST_CLAIMS])
    for _ in range(MOST_MOMENTS):
        asks, early = ready(left, now=now)
        soon = [item for *_, item in heapq.nsmallest(MOST_ENDS_AHEAD, ends)]
        queue = standing.queue(asks, now=now, held=held)
        walk = Walk(fleet, queue, running=soon, now=now, reserved=partial(_at, reserved, now))
        for item in _record_starts(walk, starts, held, now):
            heapq.heappush(ends, (item.ends_at, item.id, item))
        left = [claim for claim in left if claim.id not in starts]
        moments = [claim.start_at for claim in left if claim.id in early and claim.start_at and claim.start_at > now]
        moments += later[:1] + [end for end, *_ in ends[:1]]
        if not left or not moments:
            break
        now = min(moments)
        later = [at for at in later if at > now]
        while ends and ends[0][0] <= now:
            *_, item = heapq.heappop(ends)
            fleet.give_back(item.gpus, item.request)
            _add(held, item.tenant, Amounts() - Amounts.of(item.request))
    return starts


def _record_starts(
    walk: Walk, starts: dict[str, float], held: dict[str, Amounts], now: float
) -> Iterator[ExpectedRelease]:
    """Record the claims that start now, and what tenants then hold; yield those that end by themselves."""
    for decision in walk:
        if isinstance(decision.answer, Refused):
            continue
        _add(held, decision.ask.tenant, decision.ask.amounts)
        for claim, placed in zip(decision.ask.members, decision.answer, strict=True):
            starts[claim.id] = now
            if claim.time_limit_seconds is not None:
                yield ExpectedRelease(
                    now + claim.time_limit_seconds, claim.id, placed.gpus, claim.request, claim.tenant
                )


def _at(reserved: Callable[[QueueEntry, float], Held], now: float, claim: QueueEntry) -> Held:
    return reserved(claim, now)


def _add(held: dict[str, Amounts], tenant: str, amounts: Amounts) -> None:
    held[tenant] = held.get(tenant, Amounts()) + amounts


def from_time_limits(at: float, *, running: int, ahead: int, now: float) -> Estimate:
    """Return the forecast as an estimate."""
    if at <= now:
        return Estimate(at, "time-limits", "Fits now: the next scheduling cycle places the claim")
    detail = f"From the time limits of {_count_of(running, 'claim')} that run"
    if running == 1:
        detail = "From the time limit of the one claim that runs with one"
    if ahead:
        detail += f", with {_count_of(ahead, 'claim')} ahead in the queue"
    return Estimate(at, "time-limits", f"{detail}; earlier if claims end before their limit")


def from_recent_rate(ask: Ask, ahead: Iterable[int], freed: Sequence[Release], *, since: float, now: float) -> Estimate:
    """Return an estimate by the rate of releases since then and the claims ahead: `ahead` is the core of each."""
    wanted = max((claim.request for claim in ask.members), key=lambda request: Amounts.of(request).core_percent)
    alike = sum(_as_large(item.request, wanted) for item in freed)
    hours = max(1, round((now - since) / 3600))
    if alike < FEWEST_FREED:
        few = f"only {_count_of(alike, 'claim')}" if alike else "no claim"
        detail = (
            f"Start time unknown: time limits of running claims do not free enough, and in the last {_lately(hours)} "
            f"{few} of at least this size ended"
        )
        return Estimate(None, "none", detail)
    size = max(1, ask.amounts.core_percent)
    turns = len(ask.members) + sum(min(1.0, core / size) for core in ahead)
    at = now + turns * (now - since) / alike
    detail = (
        f"In the last {_lately(hours)} {_count_of(alike, 'claim')} of at least this size ended; "
        f"about {turns:.0f} must end first, with the claims ahead in the queue"
    )
    return Estimate(at, "recent-rate", detail)


def unknown(detail: str) -> Estimate:
    """Return no estimate, and why."""
    return Estimate(None, "none", detail)


def _as_large(freed: Request, wanted: Request) -> bool:
    return (
        freed.gpu_count >= wanted.gpu_count
        and freed.core_request >= wanted.core_request
        and freed.memory_mib >= wanted.memory_mib
    )


def _lately(hours: int) -> str:
    return "hour" if hours == 1 else f"{hours} hours"


def _count_of(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
