"""The queue of a pool at one moment: positions, estimates of start, and changes that would fit. Reads only.

The core computes all of it from one snapshot of the pool, for a few queries whatever the length of the queue. The
snapshot of a large pool is used again for some seconds, so polling costs little.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any
from uuid import UUID

from django.db.models import Count, Q, Sum
from django.utils import timezone

from apps.nodes.models import Node
from apps.nodes.models.node import FRESH
from apps.quotas.models import Pool
from apps.quotas.models.pool import FairShare
from apps.quotas.principals import Principal
from apps.scheduling.core import estimates, gangs
from apps.scheduling.core.backfill import ExpectedRelease, HeadPlan, explain_withheld
from apps.scheduling.core.estimates import MOST_CLAIMS, Estimate, Release, Standing
from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.gangs import both
from apps.scheduling.core.nearest import NO_BOUNDS, QuotaBounds, Suggestion, nearest_changes
from apps.scheduling.core.placement.filters import UNHEALTHY, Filter
from apps.scheduling.core.queue import Ask, QueueEntry, in_order
from apps.scheduling.core.values import GpuState, Held, NodeState, Placed, Reason, Refused, Request
from apps.scheduling.core.walk import Walk
from apps.scheduling.models import Claim, ClaimState
from apps.scheduling.services.charging.shortages import (
    TenantQuotas,
    present_reasons,
    quota_bounds,
    refresh_quota_reasons,
    waits_for_quota,
)
from apps.scheduling.services.claims.lifecycle import request_of
from apps.scheduling.services.cycles.expected_releases import ending
from apps.scheduling.services.cycles.fair_share import explain_share
from apps.scheduling.services.cycles.other_pools import pools_with_room
from apps.scheduling.services.cycles.queue_order import capacity_of, entry_of, holdings, read_past
from apps.scheduling.services.cycles.records import reasons_as_json
from apps.scheduling.services.failures import SET_ASIDE
from apps.scheduling.services.fleet.devices import read_fleet, read_nodes
from apps.scheduling.services.fleet.reserved import Reserved, read_reserved

# Releases of this period give the rate; of more than this many, the latest.
LATELY = timedelta(hours=24)
MOST_FREED = 500
# The snapshot of a pool with more GPUs and waiting claims than this is cached.
LARGE = 1000
CACHE_SECONDS = 20.0
# Reasons, by code, that follow from the snapshot of the fleet.
BY_THE_FLEET = frozenset({*(kind.code for kind in Filter), UNHEALTHY, "no-gpus", "kept-for-earlier"})
# Reasons, by code, that no GPU can change.
NOT_THE_FLEET = {
    "quota-exceeded": "Waiting for tenant quota; no estimate",
    "member-limit-exceeded": "Waiting for the member's limit; no estimate",
    "reservation-full": "Waiting for room in its reservation; no estimate",
    SET_ASIDE: "Set aside after a scheduler failure and retried later; no estimate",
    "budget-exceeded": "Waiting for the tenant's next budget period or a larger budget; no estimate",
}


@dataclass(frozen=True, slots=True)
class Place:
    """The position of a waiting claim in its pool. `position` is None while it is not in line."""

    position: int | None
    length: int
    estimate: Estimate
    suggestions: tuple[Suggestion, ...] = ()
    # Why it waits, by the same snapshot and the present quotas; and the time of that.
    reasons: Sequence[dict[str, Any]] = ()
    evaluated_at: datetime | None = None
    # What its tenant holds and held, where that is remembered.
    fair_share: str | None = None

    @property
    def starts_at(self) -> datetime | None:
        """The estimate as a datetime."""
        return None if self.estimate.at is None else datetime.fromtimestamp(self.estimate.at, UTC)


@dataclass(frozen=True)
class QueueSnapshot:
    """A pool at one moment, as the core takes it."""

    now: float
    policy: str
    gpus: tuple[GpuState, ...]
    nodes: tuple[NodeState, ...]
    claims: Mapping[str, Claim]
    waiting: tuple[QueueEntry, ...]
    running: tuple[ExpectedRelease, ...]
    standing: Standing
    freed: tuple[Release, ...]
    freed_since: float
    # Claims that are set aside because the core raised over them: it is not asked about them here either.
    aside: Mapping[str, Refused]
    reserved: Reserved
    _later: dict[float, Reserved] = field(init=False, default_factory=dict)
    positions: dict[str, int] = field(init=False)
    order: list[Ask] = field(init=False)
    early: dict[str, Refused] = field(init=False)
    # The index in `order` of the ask of each claim in line.
    ask_numbers: dict[str, int] = field(init=False)
    # The core of each ask of `order`.
    cores: list[int] = field(init=False)

    def __post_init__(self) -> None:
        asks, early = gangs.ready((one for one in self.waiting if one.id not in self.aside), now=self.now)
        early |= self.aside
        order = in_order(self.standing.queue(asks, now=self.now))
        ids = [claim.id for ask in order for claim in ask.members]
        object.__setattr__(self, "positions", {uid: place for place, uid in enumerate(ids, start=1)})
        object.__setattr__(self, "order", order)
        object.__setattr__(self, "early", early)
        numbers = {claim.id: number for number, ask in enumerate(order) for claim in ask.members}
        object.__setattr__(self, "ask_numbers", numbers)
        object.__setattr__(self, "cores", [ask.amounts.core_percent for ask in order])

    def _fleet(self) -> Fleet:
        return Fleet(self.gpus, self.nodes, policy=self.policy)

    @cached_property
    def starts(self) -> dict[str, float]:
        """Expected starts by time limits: of the first claims in line, and of those with a start time."""
        first = [claim for ask in self.order[:MOST_CLAIMS] for claim in ask.members][:MOST_CLAIMS]
        early = self.early.keys() - self.aside.keys()
        timed = [claim for claim in self.waiting if claim.id in early and claim.start_at is not None]
        claims = [*first, *timed[: max(0, MOST_CLAIMS - len(first))]]
        return estimates.forecast(
            self._fleet(),
            claims,
            self.running,
            self.standing,
            now=self.now,
            reserved=self._reserved_at,
            changes=self.reserved.changes(),
        )

    def _reserved_at(self, waiting: QueueEntry, at: float) -> Held:
        """Return the amounts by GPU that are withheld from the claim at that moment (Unix seconds)."""
        if at not in self._later:
            self._later[at] = self.reserved.at(datetime.fromtimestamp(at, UTC))
        return self._later[at].withheld_from(self.claims[waiting.id], lambda: self.gpus)

    def _reserved(self, waiting: QueueEntry) -> Held:
        return self._reserved_at(waiting, self.now)

    @cached_property
    def head_plan(self) -> HeadPlan | None:
        """The plan of the head of the queue."""
        queue = self.standing.queue(self.order[:MOST_CLAIMS], now=self.now)
        walk = Walk(self._fleet(), queue, running=self.running, now=self.now, reserved=self._reserved)
        for _ in walk:
            pass
        return walk.head_plan

    def estimate(self, uid: str) -> Estimate:
        """Return the estimated start of the claim, as far as it can be known."""
        if uid in self.starts:
            if uid in self.early:
                return Estimate(self.starts[uid], "time-limits", f"{self.early[uid].reasons[0].detail}.")
            ahead = max(0, self.positions.get(uid, 1) - 1)
            return estimates.from_time_limits(self.starts[uid], running=len(self.running), ahead=ahead, now=self.now)
        if uid in self.early:
            return estimates.unknown(f"{self.early[uid].reasons[0].detail}.")
        number = self.ask_numbers[uid]
        return estimates.from_recent_rate(
            self.order[number], self.cores[:number], self.freed, since=self.freed_since, now=self.now
        )

    def present_refusal(self, claim: QueueEntry) -> Refused | None:
        """Return why the claim does not fit in this snapshot; None if it does, or if that is not known for it."""
        if claim.group is not None or claim.id in self.early:
            return None
        fleet, reserved = self._fleet(), self._reserved(claim)
        answer = fleet.place(claim.request, held=reserved)
        if isinstance(answer, Refused):
            return answer
        plan = self.head_plan
        if plan is None or any(one.id == claim.id for one in plan.ask.members):
            return None
        held = both(reserved, plan.withheld_from(claim, now=self.now))
        if isinstance(fleet.place(claim.request, held=held), Placed):
            return None
        return explain_withheld(fleet, Ask((claim,)), plan, held=reserved)

    def suggestions(self, claim: QueueEntry, quota: QuotaBounds = NO_BOUNDS) -> tuple[Suggestion, ...]:
        """Return changes with which the claim would fit now, and its quota, too; nothing for the claims of a gang."""
        if claim.group is not None or claim.id in self.early:
            return ()
        fleet, plan, reserved = self._fleet(), self.head_plan, self._reserved(claim)
        if plan is None or any(one.id == claim.id for one in plan.ask.members):
            return nearest_changes(fleet, claim.request, held=reserved, quota=quota)
        held = both(reserved, plan.withheld_from(claim, now=self.now))
        seconds = int(plan.start - self.now)
        passing: tuple[Suggestion, ...] = ()
        kept_out = isinstance(fleet.place(claim.request, held=held), Refused)
        if kept_out and seconds > 0 and isinstance(fleet.place(claim.request, held=reserved), Placed):
            detail = f"Set a time limit of {seconds} s or less to start now"
            passing = (Suggestion("time_limit_seconds", seconds, detail),)
        return passing + nearest_changes(fleet, claim.request, held=held, quota=quota)


_snapshots: dict[int, tuple[float, tuple[Any, ...], QueueSnapshot]] = {}


def get_snapshot(pool: Pool) -> QueueSnapshot:
    """Return the pool as it is now, or, for a large pool, as it was some seconds ago."""
    made_at, seen, kept = _snapshots.get(pool.pk, (0.0, (), None))
    if kept is not None and time.monotonic() - made_at < CACHE_SECONDS and seen == _fingerprint(pool):
        return kept
    # Read before the snapshot, so that a change between the two is noticed; most pools are small and need none.
    before = _fingerprint(pool) if kept is not None else None
    fresh = read_snapshot(pool)
    if len(fresh.gpus) + len(fresh.waiting) > LARGE:
        _snapshots[pool.pk] = time.monotonic(), before or _fingerprint(pool), fresh
    return fresh


def _fingerprint(pool: Pool) -> tuple[Any, ...]:
    """Return what changes when nodes do: one query over the pool's nodes. A snapshot is not used after that."""
    heard = Count("pk", filter=Q(last_seen_at__gte=timezone.now() - FRESH))
    nodes = Node.objects.filter(pool=pool).aggregate(nodes=Count("pk"), versions=Sum("version"), heard=heard)
    return tuple(nodes.values())


def find_place(claim: Claim) -> Place | None:
    """Return the claim's place; None if it does not wait."""
    if not claim.waiting:
        return None
    seen, pool = get_snapshot(claim.pool), claim.pool
    place = _find_place(seen, claim)
    if pool.fair_share != FairShare.DECAYED or place.position is None:
        return place
    waiting = (one.tenant for one in seen.waiting)
    words = explain_share(seen.standing, claim.tenant.slug, waiting, half_life_seconds=pool.half_life_seconds)
    return replace(place, fair_share=words)


def _find_place(seen: QueueSnapshot, claim: Claim) -> Place:
    uid = str(claim.uid)
    length = len(seen.waiting)
    position = seen.positions.get(uid)
    if position is None and uid not in seen.early:
        return Place(None, length, estimates.unknown("Created or placed just now; no estimate yet"))
    now = datetime.fromtimestamp(seen.now, UTC)
    quotas = TenantQuotas([claim.tenant_id]) if waits_for_quota(claim) else None
    claim.reasons = _present_reasons(seen, claim, quotas)
    estimate, by_quota = _estimate(seen, claim), quotas is not None
    if not by_quota and any(reason["code"] in NOT_THE_FLEET for reason in claim.reasons):
        return Place(position, length, estimate, (), claim.reasons, now)
    if claim.waits_to_resume:
        # It resumes on its node or not at all, whatever else would fit.
        return Place(position, length, estimate, (), claim.reasons, now)
    bounds = NO_BOUNDS if quotas is None else quota_bounds(claim, quotas)
    suggestions = seen.suggestions(queue_entry(claim), bounds)
    if by_quota:
        return Place(position, length, estimate, suggestions, claim.reasons, now)
    # A claim that waits for its own start time would wait in another pool, too.
    if claim.state == ClaimState.QUEUED and claim.group is None and uid not in seen.early:
        suggestions += pools_with_room(claim)
    return Place(position, length, estimate, suggestions, claim.reasons, now)


def _present_reasons(seen: QueueSnapshot, claim: Claim, quotas: TenantQuotas | None) -> list[dict[str, Any]]:
    """Return why the claim waits by the snapshot and the present quotas, as far as these say; else the stored reasons.

    Reasons that no fleet and no quota decides (set aside, too early, its group, its reservation) are the scheduler's.
    """
    if quotas is not None:
        return present_reasons(claim, quotas.shortages(claim))
    if claim.state != ClaimState.QUEUED or not {reason["code"] for reason in claim.reasons} <= BY_THE_FLEET:
        return list(claim.reasons)
    why = seen.present_refusal(queue_entry(claim))
    return list(claim.reasons) if why is None else reasons_as_json(why)


def list_visible(seen: QueueSnapshot, principal: Principal, uids: Iterable[UUID] | None = None) -> list[str]:
    """Return the claims that the caller may see, next first, then those that are not in line, oldest first.

    `uids`: only these.
    """
    wanted = None if uids is None else {str(uid) for uid in uids}

    def is_shown(uid: str) -> bool:
        claim = seen.claims[uid]
        visible = principal.is_operator or claim.tenant_id in principal.roles
        return visible and (wanted is None or uid in wanted)

    return [uid for uid in (*seen.positions, *seen.early) if is_shown(uid)]


def attach_places(seen: QueueSnapshot, uids: Sequence[str]) -> list[Claim]:
    """Return the claims, in this order, each with its `position` and `place` set."""
    claims = [seen.claims[uid] for uid in uids]
    refresh_quota_reasons(claims)
    # For `waiting_since`: the snapshot, which has every waiting claim, leaves them out.
    timelines = dict(Claim.objects.filter(pk__in=[claim.pk for claim in claims]).values_list("pk", "timeline"))
    for claim in claims:
        claim.timeline = timelines.get(claim.pk, [])
        position = seen.positions.get(str(claim.uid))
        claim.place = Place(position, len(seen.waiting), _estimate(seen, claim))  # type: ignore[attr-defined]
        claim.position = position  # type: ignore[attr-defined]
    return claims


def _estimate(seen: QueueSnapshot, claim: Claim) -> Estimate:
    codes = [reason["code"] for reason in claim.reasons]
    if words := next((NOT_THE_FLEET[code] for code in codes if code in NOT_THE_FLEET), None):
        return estimates.unknown(words)
    return seen.estimate(str(claim.uid))


def queue_entry(claim: Claim) -> QueueEntry:
    """Return the claim as the core's queue has it, with the tenant's slug as its tenant."""
    return entry_of(claim, tenant=claim.tenant.slug, request=request_of(claim))


def read_snapshot(pool: Pool) -> QueueSnapshot:
    """Read the pool from the database."""
    now = timezone.now()
    rows = Claim.objects.in_queue().filter(pool=pool).select_related("tenant", "reservation").defer("timeline")
    claims = list(rows.order_by("pk"))
    gpus = tuple(read_fleet(pool))
    freed, since = _read_freed(pool, now)
    return QueueSnapshot(
        now=now.timestamp(),
        policy=pool.placement_policy,
        gpus=gpus,
        # Nodes are read only if a claim selects among them.
        nodes=tuple(read_nodes(pool)) if any(request_of(claim).node_selector for claim in claims) else (),
        claims={str(claim.uid): claim for claim in claims},
        waiting=tuple(queue_entry(claim) for claim in claims),
        running=tuple(ending(pool, {gpu.uuid for gpu in gpus}, now.timestamp())),
        standing=read_standing(pool, gpus, {claim.tenant.slug: claim.tenant.weight for claim in claims}),
        freed=freed,
        freed_since=since.timestamp(),
        reserved=read_reserved(pool, now=now),
        aside={str(claim.uid): why for claim in claims if (why := _aside(claim))},
    )


def _aside(claim: Claim) -> Refused | None:
    reasons = tuple(Reason(**reason) for reason in claim.reasons if reason["code"] == SET_ASIDE)
    return Refused(reasons) if reasons else None


def read_standing(pool: Pool, gpus: Sequence[GpuState], weights: Mapping[str, int]) -> Standing:
    """Return the pool's capacity and its tenants' holdings; `weights` are those of the tenants that wait."""
    held = holdings(pool, tenant="claim__tenant__slug")
    past = read_past(pool, tenant="tenant__slug")
    return Standing(capacity_of(gpus), held, weights, pool.patience_seconds, past)


def _read_freed(pool: Pool, now: datetime) -> tuple[tuple[Release, ...], datetime]:
    """Return the claims that were released lately, and since when they were counted."""
    over = Claim.objects.filter(pool=pool, state=ClaimState.RELEASED, assigned_at__isnull=False)
    latest = over.filter(released_at__gte=now - LATELY).order_by("-released_at")[:MOST_FREED]
    rows = latest.values_list("released_at", "gpu_count", "core_request", "memory_mib")
    times = [at or now for at, *_ in rows]
    since = times[-1] if len(times) == MOST_FREED else max(now - LATELY, pool.created_at)
    freed = (Request(gpu_count, core, memory) for _, gpu_count, core, memory in rows)
    return tuple(Release(at.timestamp(), request) for at, request in zip(times, freed, strict=True)), since
