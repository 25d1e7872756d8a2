"""Replay of one run: claims arrive, start when the scheduler decides, and end after the trace's duration."""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from benchmarks.churn.load import Arrival, Load
from benchmarks.churn.schedulers import Scheduler


class Wrong(Exception):
    """The scheduler placed a claim on capacity that is not free."""


@dataclass
class Course:
    """Course of a run: each claim's start; and, while claims arrived, time-weighted sums."""

    load: Load
    started: dict[int, float] = field(default_factory=dict)
    # Seconds times percent of core in use: in all, and while a claim waited; and those seconds.
    held: float = 0.0
    held_under_pressure: float = 0.0
    under_pressure: float = 0.0
    # Jain's index over the core of waiting tenants, times seconds; and those seconds.
    even: float = 0.0
    several_wait: float = 0.0


def replay(load: Load, scheduler: Scheduler) -> Course:
    """Replay until the last claim has started.

    Raises Wrong if a GPU is overcommitted.
    """
    return _Play(load, scheduler).run()


class _Play:
    def __init__(self, load: Load, scheduler: Scheduler) -> None:
        self.load, self.scheduler, self.course = load, scheduler, Course(load)
        self.used: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()
        self.holds: dict[str, int] = defaultdict(int)
        self.ends: list[tuple[float, int, Arrival, tuple[str, ...]]] = []
        self.models = {gpu.uuid: gpu.model for gpu in load.gpus}

    def run(self) -> Course:
        arrivals, at, now = self.load.arrivals, 0, 0.0
        while at < len(arrivals) or self.waiting.total() or (self.ends and now < self.load.seconds):
            moment = min([*(one.at for one in arrivals[at : at + 1]), *(one[0] for one in self.ends[:1])])
            self._meanwhile(now, min(moment, self.load.seconds))
            now = moment
            while self.ends and self.ends[0][0] <= now:
                self._end(*heapq.heappop(self.ends)[2:])
            while at < len(arrivals) and arrivals[at].at <= now:
                self.scheduler.arrive(arrivals[at])
                self.waiting[arrivals[at].tenant] += 1
                at += 1
            for claim, gpus in self.scheduler.round(now):
                self._start(claim, gpus, now)
        self._meanwhile(now, self.load.seconds)
        return self.course

    def _start(self, claim: Arrival, gpus: tuple[str, ...], now: float) -> None:
        asked = claim.request
        self.used.update(dict.fromkeys(gpus, asked.core_request))
        if len(set(gpus)) != asked.gpu_count or any(self.used[uuid] > 100 for uuid in gpus):
            raise Wrong(f"{claim} on {gpus}: more than there is")
        if len({uuid.rpartition("-")[0] for uuid in gpus}) != 1 or claim.number in self.course.started:
            raise Wrong(f"{claim} on {gpus}: on several nodes, or twice")
        if asked.models and not {self.models[uuid] for uuid in gpus} <= set(asked.models):
            raise Wrong(f"{claim} on {gpus}: not a model that it asked for")
        self.course.started[claim.number] = now
        self.waiting[claim.tenant] -= 1
        self.holds[claim.tenant] += asked.gpu_count * asked.core_request
        heapq.heappush(self.ends, (now + claim.runs_seconds, claim.number, claim, gpus))

    def _end(self, claim: Arrival, gpus: tuple[str, ...]) -> None:
        asked = claim.request
        self.used.subtract(dict.fromkeys(gpus, asked.core_request))
        self.holds[claim.tenant] -= asked.gpu_count * asked.core_request
        self.scheduler.end(claim, gpus)

    def _meanwhile(self, since: float, until: float) -> None:
        """Add the time between two events, in which nothing changed."""
        seconds, course = until - since, self.course
        if seconds <= 0:
            return
        held = sum(self.holds.values())
        course.held += seconds * held
        tenants = [tenant for tenant, number in self.waiting.items() if number]
        if tenants:
            course.under_pressure += seconds
            course.held_under_pressure += seconds * held
        if len(tenants) > 1:
            course.several_wait += seconds
            course.even += seconds * jain(self.holds[tenant] for tenant in tenants)


def jain(values: Iterable[float]) -> float:
    """Return Jain's index of fairness: 1 if all have the same, 1/n if one of n has everything."""
    found = list(values)
    squares = len(found) * sum(value * value for value in found)
    return sum(found) ** 2 / squares if squares else 1.0
