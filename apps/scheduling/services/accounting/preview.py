"""Previews of changed quotas: who would hold more than they may, and which waiting claims could start, or no longer.

The change itself is the real one, in a transaction that is taken back. What it does to the queue is worked out on the
numbers before and after it, not by a round: a round locks GPUs and nodes, and a question must not hold up anybody.
Claims are tried in the order of the queue on the GPUs as they are free now, before those of other tenants.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from apps.quotas.models import CohortShare, Pool, ResourceQuota, Tenant
from apps.quotas.models.resource import ZERO_WITHOUT_ROW
from apps.quotas.services import member_limits
from apps.quotas.services.charging import MemberLimitExceeded, QuotaExceeded
from apps.scheduling.core import gangs
from apps.scheduling.core.placement import place
from apps.scheduling.core.values import GpuState, NodeState, Placed
from apps.scheduling.models import Claim
from apps.scheduling.models.claim import WAITING
from apps.scheduling.services.accounting.budgets import BudgetExceeded, refuse_spent
from apps.scheduling.services.claims import states
from apps.scheduling.services.claims.life import request_of
from apps.scheduling.services.placing.fleet import read_fleet, read_nodes, taken
from apps.scheduling.services.placing.queue import waiting_of
from apps.scheduling.services.reserving.reserved import Reserved, read_reserved
from gpucloud.errors import GpucloudError

# An operator reads no longer list; what is behind it is counted.
MOST_CLAIMS = 200

Reasons = list[dict[str, Any]]
Fleets = dict[int, dict[str, GpuState]]
Nodes = dict[int, list[NodeState]]
Kept = tuple[
    Fleets,
    dict[int, Reserved],
    list[tuple[ResourceQuota, int]],
    list[tuple[CohortShare, int]],
    dict[tuple[int, int | None], dict[str, int]],
]


def preview(act: Callable[[], Any], *, tenant: Tenant, show: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """What a change of the tenant's quotas would do, beside what it would answer. Raises whatever `act` raises.

    With the tenant the others of its cohort are looked at: they lend to it and borrow from it.
    """
    tenants = list(Tenant.objects.filter(cohort=tenant.cohort)) if tenant.cohort else [tenant]
    waiting = Claim.objects.filter(tenant__in=tenants, state__in=WAITING).select_related(
        "tenant", "pool", "reservation"
    )
    claims = list(waiting.order_by("-priority", "pk")[:MOST_CLAIMS])
    pools = {claim.pool_id: claim.pool for claim in claims}
    fleets = {pk: {gpu.uuid: gpu for gpu in read_fleet(pool)} for pk, pool in pools.items()}
    nodes = {pk: read_nodes(pool) for pk, pool in pools.items()}
    line = _Line(waiting, claims, pools)
    spent = {item.pk: _spent(item) for item in tenants}
    with transaction.atomic():
        before = _Outlook(tenants, fleets, nodes, line).of(claims, spent)
        shown = show(act())
        outlook = _Outlook(tenants, fleets, nodes, line)
        transaction.set_rollback(True)
    over = [_over(quota) for quota in outlook.quotas if quota.excess or (quota.borrowed and _share_excess(quota))]
    after = outlook.of(claims, spent)
    told = [(_told(claim), before[claim.uid], after[claim.uid]) for claim in claims]
    return {
        **shown,
        "dry_run": True,
        "over": over,
        "runnable": [{**facts, "changed": bool(old)} for facts, old, new in told if not new],
        "pending": [{**facts, "changed": not old, "reasons": new} for facts, old, new in told if new],
        "claims_left_out": waiting.count() - len(claims),
    }


class _Line:
    """What of the queue is asked together, what not at all by now, and what is reserved."""

    def __init__(self, waiting: QuerySet[Claim], claims: Iterable[Claim], pools: Mapping[int, Pool]) -> None:
        now = timezone.now()
        self.reserved = {pk: read_reserved(pool, now=now) for pk, pool in pools.items()}
        self.early: dict[str, Reasons] = {}
        # By each member's uid: all claims of its gang.
        self.gangs: dict[str, list[Claim]] = {}
        there = {str(claim.uid): claim for claim in claims}
        # Also those beyond what is looked at: they may be what a gang waits for.
        special = list(waiting.filter(Q(group__isnull=False) | Q(start_at__gt=now)))
        for pk in pools:
            of_pool = [there.get(str(claim.uid), claim) for claim in special if claim.pool_id == pk]
            by_uid = {str(claim.uid): claim for claim in of_pool}
            asks, early = gangs.ready(map(waiting_of, of_pool), now=now.timestamp())
            self.early |= {uid: [asdict(reason) for reason in why.reasons] for uid, why in early.items()}
            for ask in asks:
                members = [by_uid[claim.id] for claim in gangs.placing_order(ask)]
                self.gangs |= dict.fromkeys((claim.id for claim in ask.members), members)


class _Outlook:
    """The tenants' quotas and the pools' GPUs at one moment, filled up claim by claim."""

    def __init__(self, tenants: Iterable[Tenant], fleets: Fleets, nodes: Nodes, line: _Line) -> None:
        self.line = line
        self.reserved = {pk: reserved.at(reserved.now) for pk, reserved in line.reserved.items()}
        # Of gangs that were tried: why each waits as a whole.
        self.tried: dict[str, Reasons] = {}
        rows = ResourceQuota.objects.filter(tenant__in=tenants).select_related("tenant", "pool", "share")
        self.quotas = list(rows.order_by("pk"))
        self.fleets, self.nodes = dict(fleets), nodes
        self.members: dict[tuple[int, int | None], tuple[dict[str, int], dict[str, int]]] = {}
        # Quotas of one share see one another's charges.
        shares: dict[int, CohortShare] = {}
        for quota in self.quotas:
            if quota.share is not None:
                quota.share = shares.setdefault(quota.share.pk, quota.share)

    def of(self, claims: Iterable[Claim], spent: dict[int, Reasons]) -> dict[UUID, Reasons]:
        """Why each of these claims would go on waiting; nothing where it could start."""
        return {claim.uid: spent[claim.tenant_id] or self._together(claim) for claim in claims}

    def _together(self, claim: Claim) -> Reasons:
        """Alone, or with its gang: all of it or nothing."""
        uid = str(claim.uid)
        if uid in self.line.early:
            return self.line.early[uid]
        if uid not in self.line.gangs:
            return self._start(claim)
        if uid not in self.tried:
            members, kept = self.line.gangs[uid], self._kept()
            why = next((reasons for member in members if (reasons := self._start(member))), [])
            if why:
                self._undo(kept)
            self.tried |= {str(member.uid): why for member in members}
        return self.tried[uid]

    def _kept(self) -> Kept:
        shares = {quota.share.pk: quota.share for quota in self.quotas if quota.share is not None}
        reserved = {pk: replace(item, holds=list(item.holds), _until={}) for pk, item in self.reserved.items()}
        return (
            dict(self.fleets),
            reserved,
            [(quota, quota.used) for quota in self.quotas],
            [(share, share.taken) for share in shares.values()],
            {key: dict(held) for key, (_, held) in self.members.items()},
        )

    def _undo(self, kept: Kept) -> None:
        self.fleets, self.reserved, quotas, shares, members = kept
        for quota, used in quotas:
            quota.used = used
        for share, taken_ in shares:
            share.taken = taken_
        # Who was looked up since held then what is read anew.
        self.members = {key: (self.members[key][0], held) for key, held in members.items()}

    def _start(self, claim: Claim) -> Reasons:
        """As a round does it: what does not fit is not charged."""
        fleet, reserved = self.fleets[claim.pool_id], self.reserved[claim.pool_id]
        held = reserved.held(claim, fleet.values)
        answer = place(fleet.values(), request_of(claim), nodes=self.nodes[claim.pool_id], held=held)
        if not isinstance(answer, Placed):
            return [asdict(reason) for reason in answer.reasons]
        if not any(claim.charged.values()):
            try:
                self._charge(claim)
            except QuotaExceeded as error:
                return [_reason(error)]
        reserved.took(claim, answer.gpus)
        self.fleets[claim.pool_id] = taken(fleet, answer, request_of(claim))
        return []

    def _charge(self, claim: Claim) -> None:
        """As `charging` does it, on the numbers alone. Raises QuotaExceeded."""
        asked = states.amounts(gpu_count=claim.gpu_count, core=claim.core_request, memory_mib=claim.memory_mib)
        wanted = {resource: amount for resource, amount in asked.items() if amount}
        limits, held = self._member(claim)
        for resource in limits.keys() & wanted.keys():
            hard, used = limits[resource], held[resource]
            if used + wanted[resource] > hard:
                raise MemberLimitExceeded(resource=resource, hard=hard, used=used, requested=wanted[resource])
        quotas = [quota for quota in self.quotas if _covers(quota, claim) and quota.resource in wanted]
        for resource in ZERO_WITHOUT_ROW:
            if resource in wanted and resource not in {quota.resource for quota in quotas}:
                raise QuotaExceeded(resource=resource, pool=claim.pool.name, hard=0, used=0, requested=wanted[resource])
        for quota in quotas:
            _refuse_full(quota, wanted[quota.resource])
        for quota in quotas:
            more = quota.taken(quota.used + wanted[quota.resource]) - quota.taken()
            quota.used += wanted[quota.resource]
            if quota.share is not None:
                quota.share.taken += more
        for resource in limits.keys() & wanted.keys():
            held[resource] += wanted[resource]

    def _member(self, claim: Claim) -> tuple[dict[str, int], dict[str, int]]:
        """What bounds the claim's member, and what the member holds, by resource."""
        key = (claim.tenant_id, claim.user_id)
        if key not in self.members:
            limits = member_limits.seen(claim.tenant, claim.user_id)
            held = member_limits.held(claim.tenant, claim.user_id) if limits and claim.user_id else {}
            self.members[key] = limits, held
        return self.members[key]


def _refuse_full(quota: ResourceQuota, amount: int) -> None:
    if quota.free is not None and amount > quota.free:
        raise QuotaExceeded(
            resource=quota.resource,
            pool=quota.pool.name if quota.pool else None,
            hard=quota.hard or 0,
            used=quota.used,
            requested=amount,
            free=quota.free,
        )


def _covers(quota: ResourceQuota, claim: Claim) -> bool:
    return quota.tenant_id == claim.tenant_id and quota.pool_id in (None, claim.pool_id)


def _reason(error: GpucloudError) -> dict[str, Any]:
    return {"code": error.code, "gpus": 0, "detail": error.detail}


def _spent(tenant: Tenant) -> Reasons:
    try:
        refuse_spent(tenant)
    except BudgetExceeded as error:
        return [_reason(error)]
    return []


def _share_excess(quota: ResourceQuota) -> int:
    """What the cohort has taken above what it lends; those that borrow would have to give it back."""
    return quota.share.excess if quota.share is not None else 0


def _over(quota: ResourceQuota) -> dict[str, Any]:
    return {
        "tenant": quota.tenant.slug,
        "pool": quota.pool and quota.pool.name,
        "resource": quota.resource,
        "hard": quota.hard,
        "used": quota.used,
        "borrowed": quota.borrowed,
        "excess": max(quota.excess, min(quota.borrowed, _share_excess(quota))),
    }


def _told(claim: Claim) -> dict[str, Any]:
    return {"claim": str(claim.uid), "tenant": claim.tenant.slug, "name": claim.name}
