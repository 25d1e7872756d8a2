"""The order of the queue: by priority, then the tenant with the lowest weighted dominant share, then by age.

A tenant's dominant share is the largest part that it holds of any of the pool's resources (core, memory, whole GPUs);
divided by its weight it says which tenant is furthest behind (dominant resource fairness, Ghodsi et al., NSDI 2011).
Shares move with every placement, so the order is not a list that is sorted once: each tenant has a line of its own by
age, and a heap says whose line is next. Only the share of the tenant that was asked moves; asking n claims of t tenants
costs n log t.

Claims that are placed together are asked together: a gang counts as old as its last claim and as urgent as its least
urgent one, so that nobody gains by sending one claim of it ahead.

In a pool whose fair share remembers, what a tenant held on average in the past counts as if it held it now, too
(`core.fair_share`).

By shares alone, a tenant's large claims would be passed by everybody's small ones for as long as it holds most. So a
claim that has waited longer than the pool's patience goes first at its priority, by age alone, whatever its tenant
holds.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from apps.scheduling.core.fair_share import NO_PAST, Past
from apps.scheduling.core.values import Request

WHOLE_GPU = 100
# The line of claims that have waited long: no tenant's name.
LONG = ""


@dataclass(frozen=True, slots=True)
class Amounts:
    """Amounts held of a pool, or its capacity."""

    core_percent: int = 0
    memory_mib: int = 0
    gpus: int = 0

    @classmethod
    def of(cls, request: Request) -> Self:
        """Return the amounts that the request holds once it is placed; `gpus` counts whole ones only."""
        count = request.gpu_count
        whole = count if request.core_request == WHOLE_GPU else 0
        return cls(count * request.core_request, count * request.memory_mib, whole)

    def __add__(self, more: "Amounts") -> "Amounts":
        return Amounts(self.core_percent + more.core_percent, self.memory_mib + more.memory_mib, self.gpus + more.gpus)

    def __sub__(self, less: "Amounts") -> "Amounts":
        return Amounts(self.core_percent - less.core_percent, self.memory_mib - less.memory_mib, self.gpus - less.gpus)

    def share_of(self, capacity: "Amounts", weight: int, past: Past = NO_PAST) -> float:
        """Return the dominant share by weight, with what was held in the past.

        Division of integers (and of multiples of 1/1024) rounds exactly, so equal shares compare as equal. The core of
        whole GPUs is a part of all core, so that they need no past of their own.
        """
        pairs = (
            (self.core_percent + past.core_percent, capacity.core_percent),
            (self.memory_mib + past.memory_mib, capacity.memory_mib),
            (self.gpus, capacity.gpus),
        )
        return max((held / (has * weight) for held, has in pairs if has), default=0.0)


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """One claim in the queue. `since` is its number in the order of arrival.

    `start_at` and `waits_since` are in Unix seconds; a claim without `waits_since` has not waited long.
    """

    id: str
    tenant: str
    request: Request
    since: int
    priority: int = 0
    time_limit_seconds: int | None = None
    start_at: float | None = None
    group: str | None = None
    group_size: int = 1
    waits_since: float | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """Claims that are placed together, all or none: one claim, or a whole gang, oldest first."""

    members: tuple[QueueEntry, ...]

    @property
    def tenant(self) -> str:
        """The tenant; a gang has one tenant."""
        return self.members[0].tenant

    @property
    def priority(self) -> int:
        """The least priority of its claims."""
        return min(member.priority for member in self.members)

    @property
    def since(self) -> int:
        """The number of the last of its claims to arrive."""
        return max(member.since for member in self.members)

    def waits_since_before(self, moment: float) -> bool:
        """Return True if each of its claims has waited since before that moment."""
        return all(member.waits_since is not None and member.waits_since < moment for member in self.members)

    @property
    def amounts(self) -> Amounts:
        """The amounts that it would hold."""
        total = Amounts()
        for member in self.members:
            total += Amounts.of(member.request)
        return total

    @property
    def time_limit_seconds(self) -> int | None:
        """The time after which all of it has ended; None: not known."""
        limits = [member.time_limit_seconds for member in self.members]
        known = [limit for limit in limits if limit is not None]
        return max(known) if len(known) == len(limits) else None


class Queue:
    """Asks in their order, while shares move.

    `held` are the amounts that each tenant holds of the pool now, `past` those that count beside them, `capacity` those
    of the pool. An ask that has waited
    since before `long_before` (Unix seconds) goes by age. `next` returns each ask once; call `record_placement` for an
    ask that got its GPUs, before the next `next`.
    """

    def __init__(
        self,
        asks: Iterable[Ask],
        *,
        capacity: Amounts,
        held: Mapping[str, Amounts],
        weights: Mapping[str, int],
        long_before: float | None = None,
        past: Mapping[str, Past] | None = None,
    ) -> None:
        self._capacity, self._weights = capacity, weights
        self._past = {tenant: amounts.rounded() for tenant, amounts in (past or {}).items()}
        self._held = dict(held)
        # Asks that have waited long are a level of their own, above the others of their priority, with one line.
        levels: dict[tuple[int, bool], dict[str, list[Ask]]] = defaultdict(lambda: defaultdict(list))
        for ask in asks:
            long = long_before is not None and ask.waits_since_before(long_before)
            levels[ask.priority, long][LONG if long else ask.tenant].append(ask)
        self._levels = sorted(levels.items())
        self._lines: dict[str, deque[Ask]] = {}
        # (share, age and id of the first in line, tenant, edition): a newer edition makes an entry void.
        self._heap: list[tuple[float, int, str, str, int]] = []
        self._editions: dict[str, int] = defaultdict(int)
        self._asked: str | None = None

    def next(self) -> Ask | None:
        """Return the next ask; None if each was returned."""
        if self._asked is not None:
            self._line_up(self._asked)
            self._asked = None
        while True:
            if not self._heap and not self._open_level():
                return None
            *_, tenant, edition = heapq.heappop(self._heap)
            if edition == self._editions[tenant] and self._lines[tenant]:
                self._asked = tenant
                return self._lines[tenant].popleft()

    def record_placement(self, ask: Ask) -> None:
        """Add the ask's amounts to its tenant's."""
        self._held[ask.tenant] = self._held.get(ask.tenant, Amounts()) + ask.amounts

    def undo_placement(self, ask: Ask) -> None:
        """Undo `record_placement` of the ask after a failed commit."""
        self._held[ask.tenant] -= ask.amounts
        if ask.tenant != self._asked and self._lines.get(ask.tenant):
            self._line_up(ask.tenant)

    def share(self, tenant: str) -> float:
        """Return the tenant's dominant share by weight, as it stands."""
        held, past = self._held.get(tenant, Amounts()), self._past.get(tenant, NO_PAST)
        return held.share_of(self._capacity, self._weights.get(tenant, 1), past)

    def _open_level(self) -> bool:
        """Go on to the next lower level, with the shares as they are by then."""
        if not self._levels:
            return False
        _, lines = self._levels.pop()
        self._lines = {
            tenant: deque(sorted(asks, key=lambda ask: (ask.since, ask.members[0].id)))
            for tenant, asks in lines.items()
        }
        for tenant in self._lines:
            self._line_up(tenant)
        return True

    def _line_up(self, tenant: str) -> None:
        self._editions[tenant] += 1
        if line := self._lines[tenant]:
            entry = (self.share(tenant), line[0].since, line[0].members[0].id, tenant, self._editions[tenant])
            heapq.heappush(self._heap, entry)


def in_order(queue: Queue) -> list[Ask]:
    """Return all asks in the order in which they are asked if each is placed: the positions in the queue."""
    order = []
    while (ask := queue.next()) is not None:
        queue.record_placement(ask)
        order.append(ask)
    return order
