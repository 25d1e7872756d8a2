"""The order of a round's candidates: the order of `core.queue` and `core.gangs` over the claims of a pool's cache."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from django.db.models import Count, Q, Sum

from apps.quotas.models import Pool, Tenant
from apps.quotas.models.pool import FairShare, PlacementPolicy
from apps.scheduling.core import gangs
from apps.scheduling.core.fair_share import Past
from apps.scheduling.core.queue import Amounts, Ask, Queue, QueueEntry
from apps.scheduling.core.values import GpuState, Refused, Request
from apps.scheduling.models import Assignment, Claim, PastUse
from apps.scheduling.services.cycles.waiting_claims import WaitingClaim


class QueueOrder:
    """The candidates of one round in the queue's order, while shares move.

    `early`: claims that may not be asked yet, and why.
    """

    def __init__(self, pool: Pool, candidates: Iterable[WaitingClaim], gpus: Iterable[GpuState], *, now: float) -> None:
        self._by_uid = {str(waiting.claim.uid): waiting for waiting in candidates}
        by_chance = pool.placement_policy == PlacementPolicy.RANDOM
        asks, early = gangs.ready(
            (queue_entry(waiting, by_chance=by_chance) for waiting in self._by_uid.values()), now=now
        )
        self.early: list[tuple[WaitingClaim, Refused]] = [(self._by_uid[uid], why) for uid, why in early.items()]
        tenants = {ask.tenant for ask in asks}
        # The claims of one tenant have one order, whatever it holds: most rounds are of one new claim.
        held, weights, past = (holdings(pool), _weights(tenants), read_past(pool)) if len(tenants) > 1 else ({}, {}, {})
        capacity = capacity_of(gpus) if len(tenants) > 1 else Amounts()
        long_before = None if pool.patience_seconds is None else now - pool.patience_seconds
        self._queue = Queue(asks, capacity=capacity, held=held, weights=weights, long_before=long_before, past=past)
        self.next, self.record_placement = self._queue.next, self._queue.record_placement

    def members(self, ask: Ask) -> list[WaitingClaim]:
        """Return the claims of the ask, in its order."""
        return [self._by_uid[claim.id] for claim in ask.members]


def queue_entry(waiting: WaitingClaim, *, by_chance: bool = False) -> QueueEntry:
    """Return the claim as the core's queue has it, with the tenant's key as its tenant.

    `by_chance`: the policy places at random, and each claim draws by its own id.
    """
    claim = waiting.claim
    request = replace(waiting.request, key=str(claim.uid)) if by_chance else waiting.request
    return entry_of(claim, tenant=str(claim.tenant_id), request=request)


def entry_of(claim: Claim, *, tenant: str, request: Request) -> QueueEntry:
    """Return the claim as the core's queue has it. A claim with a start time waits from then on."""
    start_at = None if claim.start_at is None else claim.start_at.timestamp()
    return QueueEntry(
        id=str(claim.uid),
        tenant=tenant,
        request=request,
        since=claim.pk,
        priority=claim.priority,
        time_limit_seconds=claim.time_limit_seconds,
        start_at=start_at,
        group=claim.group,
        group_size=claim.group_size or 1,
        waits_since=max(claim.created_at, claim.start_at or claim.created_at).timestamp(),
    )


def capacity_of(gpus: Iterable[GpuState]) -> Amounts:
    """Return the capacity of a pool of these GPUs."""
    sizes = [gpu.memory_mib for gpu in gpus]
    return Amounts(100 * len(sizes), sum(sizes), len(sizes))


def holdings(pool: Pool, *, tenant: str = "claim__tenant") -> dict[str, Amounts]:
    """Return the amounts that each tenant, by key or by another column, holds of the pool."""
    live = Assignment.objects.filter(claim__pool=pool).live()
    sums = live.values(tenant).annotate(
        core=Sum("held_core"), memory=Sum("held_memory_mib"), gpus=Count("pk", filter=Q(held_core=100))
    )
    return {str(row[tenant]): Amounts(row["core"], row["memory"], row["gpus"]) for row in sums}


def read_past(pool: Pool, *, tenant: str = "tenant_id") -> dict[str, Past]:
    """Return what each tenant, by key or by another column, held of the pool on average; nothing unless that counts."""
    if pool.fair_share != FairShare.DECAYED:
        return {}
    rows = PastUse.objects.filter(pool=pool).order_by("pk").values_list(tenant, "core_percent", "memory_mib")
    return {str(key): Past(core, memory) for key, core, memory in rows}


def _weights(tenants: Iterable[str]) -> Mapping[str, int]:
    rows = Tenant.objects.filter(pk__in=map(int, tenants)).exclude(weight=1)
    return {str(key): weight for key, weight in rows.values_list("pk", "weight")}
