"""A replay: past claims come and go as they did, and the placement core decides when and where each gets its GPUs.

Events are taken in the order of time; at one moment, what ends goes first, then live resizes, then claims that gave up,
then arrivals. After each moment the waiting claims are asked as a round asks them: in the queue's order, with EASY
backfilling behind the first that has no room.

- A claim holds its GPUs for as long as it did, from the moment at which it gets them here.
- A claim that never ran is taken to run for its time limit, else as long as the claims of the period did in the median,
  and gives up when it did. A claim that still runs does so until the end of the period.
- Quotas, reservations, preemption, borrowing and cordons are not replayed.

The replay is deterministic. A request that has no room is asked again only after something was given back that could
help it, so that a long queue costs little.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from statistics import median

from apps.scheduling.core import gangs
from apps.scheduling.core.backfill import BlockedHead, ExpectedRelease
from apps.scheduling.core.fair_share import NO_PAST
from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.queue import Amounts, Ask, Queue, QueueEntry
from apps.scheduling.core.values import Placed, Refused, Request
from apps.whatif.counting import WHOLE, Allocation, percent, percentile
from apps.whatif.kinds import Converter, Unfit
from apps.whatif.values import ORDERS, Figures, Kind, PastClaim, Resize, Site, Size, Waits

# The order of events at one moment.
ENDS, RESIZES, LEAVES, ARRIVES = range(4)
# Claims of one line that are asked in one pass; another pass follows while claims get GPUs.
AT_ONCE = 2
# Events between two reports of progress.
STEP = 500

Shape = tuple[Request, ...]
Line = tuple[Request, str, int, int | None, str | None]
Progress = Callable[[int, int], None]


@dataclass(slots=True)
class _Running:
    claim: PastClaim
    placed: Placed
    request: Request
    began: float
    # What the claim asked for; less than its request has under MIG.
    asked: Size


class Replay:
    """The claims of a period under one kind of sharing; `run` returns the figures."""

    def __init__(self, site: Site, claims: Sequence[PastClaim], kind: Kind, *, backend: str = "auto") -> None:
        self.site, self.claims, self.kind = site, claims, kind
        self.converter = Converter(kind, site.gpus, site.nodes)
        gpus = self.converter.gpus
        self.fleet = Fleet(gpus, site.nodes, policy=site.policy, backend=backend)
        self.allocation = Allocation(gpus, begin=site.begin)
        self.blocked_head = BlockedHead(self._ending)
        self._uuids = {gpu.uuid for gpu in gpus}
        self._capacity = Amounts(WHOLE * len(gpus), self.allocation.capacity.memory_mib, len(gpus))
        ran = [claim.run_seconds for claim in claims if claim.run_seconds is not None]
        self._typical = median(ran) if ran else site.end - site.begin
        self._by_id = {claim.entry.id: claim for claim in claims}
        self._events: list[tuple[float, int, int, str, Resize | None]] = []
        self._numbers = iter(range(1 << 62))
        # Waiting claims by all that decides about them but age; in the order of arrival.
        self._lines: dict[Line, dict[str, QueueEntry]] = {}
        self._running: dict[str, _Running] = {}
        self._held: dict[str, Amounts] = {}
        # What tenants held on average, at `_past_at`; empty unless that counts.
        self._remembers = site.remembers if kind not in ORDERS else kind == "fair-share-decayed"
        self._past = dict(site.past) if self._remembers else {}
        self._past_at = site.begin
        # Shapes without room; and, with their time limits, those without room beside what is withheld for the head.
        self._closed: set[Shape] = set()
        self._held_back: set[tuple[Shape, int | None]] = set()
        self.waits: dict[str, float] = {}
        self.unfit: dict[str, int] = {}
        self.accepted: set[str] = set()
        self.left = self.resizes = self.resizes_refused = self.restarts = self.suspensions_refused = 0

    def run(self, progress: Progress = lambda done, total: None) -> Figures:
        """Replay all events up to the end of the period; `progress` is called with (claims seen, claims)."""
        seen = steps = 0
        # What held its GPUs when the period began goes first.
        for claim in self.claims:
            if claim.ran_before:
                self._arrive(claim, self.site.begin)
                seen += 1
            else:
                self._push(max(claim.arrives_at, self.site.begin), ARRIVES, claim.entry.id)
        self._ask_all(self.site.begin)
        while self._events and self._events[0][0] < self.site.end:
            now = self._events[0][0]
            self.allocation.pass_to(now, claims_wait=bool(self._lines))
            self._pass_to(now)
            while self._events and self._events[0][0] == now:
                _, what, _, uid, resize = heapq.heappop(self._events)
                seen += what == ARRIVES
                self._take_event(what, uid, resize, now)
            self._ask_all(now)
            if (steps := steps + 1) % STEP == 0:
                progress(seen, len(self.claims))
        self.allocation.pass_to(self.site.end, claims_wait=bool(self._lines))
        progress(len(self.claims), len(self.claims))
        return self._figures()

    def _pass_to(self, now: float) -> None:
        """Let what tenants hold count as past use, up to this moment."""
        if not self._remembers:
            return
        seconds, self._past_at = now - self._past_at, now
        for tenant in self._past.keys() | self._held.keys():
            held = self._held.get(tenant, Amounts())
            self._past[tenant] = self._past.get(tenant, NO_PAST).after(
                seconds,
                half_life=self.site.half_life_seconds,
                core_percent=held.core_percent,
                memory_mib=held.memory_mib,
            )

    def _push(self, at: float, what: int, uid: str, resize: Resize | None = None) -> None:
        heapq.heappush(self._events, (at, what, next(self._numbers), uid, resize))

    def _take_event(self, what: int, uid: str, resize: Resize | None, now: float) -> None:
        if what == ARRIVES:
            self._arrive(self._by_id[uid], now)
        elif what == LEAVES:
            self._leave(uid, now)
        elif what == ENDS:
            self._end(self._running.pop(uid))
        elif uid in self._running and resize is not None:
            self._resize(self._running[uid], resize.size)

    def _arrive(self, claim: PastClaim, now: float) -> None:
        request = self.converter.convert(claim)
        if isinstance(request, Unfit):
            self.unfit[request.reason] = self.unfit.get(request.reason, 0) + 1
            return
        self.fleet.learn(request)
        entry = replace(claim.entry, request=request, waits_since=claim.arrives_at, start_at=None)
        self._lines.setdefault(_line(entry), {})[entry.id] = entry
        if claim.left_at is not None:
            self._push(max(claim.left_at, now), LEAVES, entry.id)

    def _leave(self, uid: str, now: float) -> None:
        """Remove a claim that gave up waiting; one that got GPUs here stays."""
        entry = next((line[uid] for line in self._lines.values() if uid in line), None)
        if entry is not None:
            self._forget(entry)
            self.left += 1
            self.waits[uid] = now - self._by_id[uid].arrives_at
            self.blocked_head.remove_claim(entry.since, uid)
            # What was withheld for it is free.
            self._closed.clear()
            self._held_back.clear()

    def _forget(self, entry: QueueEntry) -> None:
        line = self._lines[_line(entry)]
        del line[entry.id]
        if not line:
            del self._lines[_line(entry)]

    def _end(self, gone: _Running) -> None:
        self.fleet.give_back(gone.placed.gpus, gone.request, node=gone.placed.node)
        self._count(gone, -1)
        self._open(gone.placed.gpus)

    def _resize(self, running: _Running, size: Size) -> None:
        """Change a claim in place if its GPUs have the room; an instance keeps its size."""
        self.resizes += 1
        old = running.request
        new = replace(old, core_request=size.core, memory_mib=size.memory_mib)
        more = Size(new.core_request - old.core_request, new.memory_mib - old.memory_mib)
        gpus = self.fleet.some_gpus(running.placed.gpus)
        if self.kind == "mig" or any(
            gpu.core_free < more.core or gpu.memory_free_mib < more.memory_mib for gpu in gpus
        ):
            self.resizes_refused += 1
            return
        if self.kind.startswith("mps") and size.core > running.claim.entry.request.core_request:
            self.restarts += 1
        self.fleet.give_back(running.placed.gpus, old, node=running.placed.node)
        self.fleet.take(running.placed.gpus, new, node=running.placed.node)
        self._count(running, -1)
        running.request, running.asked = new, size
        self._count(running, 1)
        self._open(running.placed.gpus)

    def _count(self, running: _Running, sign: int) -> None:
        tenant = running.claim.entry.tenant
        self.allocation.move(running.placed.gpus, running.request, running.asked, tenant, sign)
        amounts, held = Amounts.of(running.request), self._held.get(tenant, Amounts())
        self._held[tenant] = held + amounts if sign > 0 else held - amounts

    def _open(self, gpus: Iterable[str]) -> None:
        """Ask again about the requests that these GPUs, of which something was given back, could help."""
        self._held_back.clear()
        for gpu in self.fleet.some_gpus(gpus):
            self.blocked_head.record_change(gpu)
            self._closed -= {shape for shape in self._closed if any(gpu.could_help(request) for request in shape)}

    def _ask_all(self, now: float) -> None:
        """Ask the waiting claims that may have room, until a pass places nothing."""
        while self._lines and self._ask_pass(now):
            pass

    def _ask_pass(self, now: float) -> bool:
        asks, _ = gangs.ready(self._candidates(), now=now)
        if not asks:
            return False
        patience = self.site.patience_seconds
        queue = Queue(
            asks,
            capacity=self._capacity,
            held=self._held,
            weights=self.site.weights,
            long_before=None if patience is None else now - patience,
            past=self._past,
        )
        placed = 0
        while (ask := queue.next()) is not None:
            answer = self._ask(ask, now)
            if answer is not None:
                queue.record_placement(ask)
                self._start(ask, answer, now)
                placed += 1
        return placed > 0

    def _candidates(self) -> Iterator[QueueEntry]:
        """Yield the oldest claims of each line that may have room, and all that wait for their group."""
        for line, entries in self._lines.items():
            if line[-1] is not None:
                yield from entries.values()
            elif not self._is_shut(line):
                yield from islice(entries.values(), AT_ONCE)

    def _is_shut(self, line: Line) -> bool:
        """Return True if a claim of the line was refused, and nothing changed since."""
        request, _, priority, limit, _ = line
        shape, head = (_shape(request),), self.blocked_head.head
        behind = head is not None and priority <= head.priority
        return shape in self._closed or (behind and (shape, limit) in self._held_back)

    def _ask(self, ask: Ask, now: float) -> tuple[Placed, ...] | None:
        """Ask the core about one claim or gang; the first without room becomes the head."""
        shape = tuple(_shape(member.request) for member in ask.members)
        if shape in self._closed:
            return None
        head = self.blocked_head
        head.refresh(self.fleet, self._uuids, lambda _: {}, now=now)
        held = head.withheld_from(ask, now=now)
        kind = shape, ask.time_limit_seconds
        if held and kind in self._held_back:
            return None
        answer = gangs.place_all(self.fleet, ask, held=held)
        if not isinstance(answer, Refused):
            return answer
        if held:
            self._held_back.add(kind)
        else:
            self._closed.add(shape)
        head.record_refusal(ask)
        return None

    def _start(self, ask: Ask, answer: tuple[Placed, ...], now: float) -> None:
        gangs.take(self.fleet, ask, answer)
        self.blocked_head.record_placement(ask, answer, now=now)
        for entry, placed in zip(ask.members, answer, strict=True):
            claim = self._by_id[entry.id]
            asked = claim.entry.request
            running = _Running(claim, placed, entry.request, now, Size(asked.core_request, asked.memory_mib))
            self._running[entry.id] = running
            self._count(running, 1)
            self._forget(entry)
            if self.blocked_head.head == ask:
                self._held_back.clear()
            self.blocked_head.remove_claim(entry.since, entry.id)
            self.accepted.add(entry.id)
            if not claim.ran_before:
                self.waits[entry.id] = now - claim.arrives_at
            self.suspensions_refused += 0 if self.kind == "turns" or self.kind in ORDERS else claim.suspensions
            for resize in claim.resizes:
                self._push(now + resize.after_seconds, RESIZES, entry.id, resize)
            if (seconds := self._seconds(claim)) is not None:
                self._push(now + seconds, ENDS, entry.id)

    def _seconds(self, claim: PastClaim) -> float | None:
        """Return the time for which the claim holds GPUs; None: until the end of the period."""
        if not claim.never_ran:
            return claim.run_seconds
        limit = claim.entry.time_limit_seconds
        return self._typical if limit is None else limit

    def _ending(self, gpus: Collection[str], now: float) -> list[ExpectedRelease]:
        found = []
        for uid, running in self._running.items():
            limit = running.claim.entry.time_limit_seconds
            if limit is not None:
                ends = max(now, running.began + limit)
                found.append(ExpectedRelease(ends, uid, running.placed.gpus, running.request))
        return found

    def _figures(self) -> Figures:
        end, sums = self.site.end, self.allocation.sums
        waiting = [uid for line in self._lines.values() for uid in line]
        waits_of = self.waits | {uid: end - self._by_id[uid].arrives_at for uid in waiting}
        waits = list(waits_of.values())
        seconds, capacity = end - self.site.begin, self.allocation.capacity
        core, memory = seconds * capacity.core, seconds * capacity.memory_mib
        return Figures(
            kind=self.kind,
            gpus=sum(gpu.takes_claims for gpu in self.converter.gpus if self.kind != "mig" or gpu.mig is not None),
            claims=len(self.accepted) + len(waiting) + self.left + sum(self.unfit.values()),
            accepted=len(self.accepted),
            waiting=len(waiting),
            left=self.left,
            unfit=dict(sorted(self.unfit.items())),
            wait_mean_seconds=round(sum(waits) / len(waits), 1) if waits else 0.0,
            wait_p95_seconds=round(percentile(waits, 95), 1),
            core_percent=percent(sums["core"], core),
            memory_percent=percent(sums["memory"], memory),
            rounding_core_percent=percent(sums["rounding_core"], core),
            rounding_memory_percent=percent(sums["rounding_memory"], memory),
            stranded_core_percent=percent(sums["stranded_core"], core),
            stranded_memory_percent=percent(sums["stranded_memory"], memory),
            mixed_core_percent=percent(sums["mixed"], core),
            resizes=self.resizes,
            resizes_refused=self.resizes_refused,
            restarts=self.restarts,
            suspensions_refused=self.suspensions_refused,
            waits=self._waits_by_tenant(waits_of),
        )

    def _waits_by_tenant(self, waits_of: Mapping[str, float]) -> dict[str, Waits]:
        found: dict[str, list[float]] = defaultdict(list)
        for uid, seconds in waits_of.items():
            found[self._by_id[uid].entry.tenant].append(seconds)
        return {
            tenant: Waits(len(waits), round(sum(waits) / len(waits), 1), round(percentile(waits, 95), 1))
            for tenant, waits in sorted(found.items())
        }


def _line(entry: QueueEntry) -> Line:
    return entry.request, entry.tenant, entry.priority, entry.time_limit_seconds, entry.group


@lru_cache(maxsize=4096)
def _shape(request: Request) -> Request:
    """Return the request as far as it decides whether there is room."""
    return replace(request, key="", tenant=request.tenant if request.labels else "")
