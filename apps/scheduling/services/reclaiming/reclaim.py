"""Reclaim: the claims that would have to go so that tenants get back what they lent, decided by the core.

Only claims that a round has refused, and that no other rule holds back, reclaim. They take from other tenants only if
their own tenant stays within `hard` with the claim. If the pool allows it, claims of the same tenant with a lower
priority go as well; that needs no more of the tenant's quota than that the claim fits in it afterwards. A claim that is
being released or suspended already counts as gone, so nobody goes for room that comes anyway.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.utils import timezone

from apps.nodes.models.node import FRESH
from apps.quotas.models import OrganisationQuota, Pool, Resource, ResourceQuota, Tenant
from apps.quotas.models.pool import PreemptBy
from apps.quotas.models.resource import ZERO_WITHOUT_ROW
from apps.quotas.principals import Principal
from apps.quotas.services import member_limits, organisation_quotas
from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.reclaim import Account, Books, Claimant, Holder, ReclaimBounds, Scene, Victims, reclaim
from apps.scheduling.core.values import Request
from apps.scheduling.models import Assignment, Claim, ClaimState
from apps.scheduling.services.charging import states
from apps.scheduling.services.charging.budgets import BudgetExceeded, refuse_spent
from apps.scheduling.services.claims.elastic import HOLDS, find_spare, is_spare
from apps.scheduling.services.claims.lifecycle import request_of
from apps.scheduling.services.claims.suspending import find_obstacles
from apps.scheduling.services.failures import SESSION_LOST, SET_ASIDE
from apps.scheduling.services.fleet.devices import read_fleet, read_nodes
from apps.scheduling.services.fleet.reserved import Reserved, read_reserved

logger = logging.getLogger(__name__)

# The claims of the queue that one run plans for: they stay the first until they run, so others wait for their grace.
MOST_ASKING = 256
# Claims in the instance of another: nothing is freed by their end, and nobody else's end frees room for them.
OWN = Q(instance_of=None)
# Reasons that no other claim's end would change.
NOT_BY_OTHERS = ("budget-exceeded", "member-limit-exceeded", SET_ASIDE)


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan for one waiting claim: the claims that would go, and the shares that it is still to be charged to."""

    claim: Claim
    found: Victims
    victims: tuple[Claim, ...]
    share_ids: frozenset[int]


def asking(pool: Pool, *, now: datetime) -> list[Claim]:
    """Return the refused claims that may reclaim: those for which room is being made, then in the queue's order."""
    rows = Claim.objects.filter(Q(start_at=None) | Q(start_at__lte=now), pool=pool, state=ClaimState.QUEUED)
    rows = rows.filter(OWN, best_effort=False, group=None, reservation=None, rotation__nominated_at=None)
    # If nobody borrows, or runs at a lower priority, nothing can be reclaimed, and the pool need not be read.
    borrowed = ResourceQuota.objects.filter(share__isnull=False, borrowed__gt=0)
    # Nor for who has all of its own: those that wait again since they were preempted must not crowd the lender out.
    lacks = ResourceQuota.objects.filter(share__isnull=False, hard__gt=F("used"))
    lender = Q(tenant__in=lacks.values("tenant")) | Q(charged_vgpus__gt=0)
    may = Q(nominated_gpus__isnull=False) | Q(lender, tenant__cohort__in=borrowed.values("tenant__cohort"))
    if pool.preempt_by_priority:
        lower = Claim.objects.filter(tenant=OuterRef("tenant"), pool=pool, priority__lt=OuterRef("priority"))
        may |= Q(Exists(lower.filter(HOLDS, reservation=None)))
    found = list(rows.filter(may).select_related("tenant", "pool").order_by("-priority", "pk")[:MOST_ASKING])
    found.sort(key=lambda claim: claim.nominated_gpus is None)
    return [claim for claim in found if not any(reason["code"] in NOT_BY_OTHERS for reason in claim.reasons)]


def would_reclaim(claim: Claim, *, principal: Principal) -> dict[str, Any] | None:
    """Return what would have to go for a claim that is not made: numbers, and the claims that the caller may see.

    None if nothing would go: it fits, or nothing may be reclaimed for it.
    """
    waits = claim.start_at is not None and claim.start_at > timezone.now()
    elsewhere = claim.reservation_id is not None or claim.instance_of is not None
    own_way = claim.best_effort or claim.group is not None or elsewhere
    nobody = claim.tenant.cohort is None and not claim.pool.preempt_by_priority
    if nobody or own_way or waits or claim.pool.preemption_grace_seconds is None:
        return None
    for name in states.CHARGED_FIELDS:
        setattr(claim, name, 0)
    found = plans(claim.pool, [claim])
    if not found or not found[0].victims:
        return None
    victims = found[0].victims
    ends = {key: action for key, (action, _) in find_ends(victims).items()}
    return {
        "claims": len(victims),
        "suspended": list(ends.values()).count("suspend"),
        "tenants": len({victim.tenant_id for victim in victims}),
        "core_percent": sum(victim.gpu_count * victim.core_request for victim in victims),
        "memory_mib": sum(victim.gpu_count * victim.memory_mib for victim in victims),
        "grace_seconds": claim.pool.preemption_grace_seconds,
        "explanation": found[0].found.explanation,
        "victims": [
            {"uid": str(victim.uid), "tenant": victim.tenant.slug, "name": victim.name, "action": ends[victim.pk]}
            for victim in victims
            if principal.sees(victim.tenant)
        ],
    }


def find_ends(victims: Sequence[Claim]) -> dict[int, tuple[str, str]]:
    """Return by key what ends each victim as things are, if all of them go in this order; and that in words.

    It is `suspend`, `requeue`, `shrink` or `evict`.
    """
    ends: dict[int, tuple[str, str]] = {}
    may_suspend = list[Claim]()
    for victim in victims:
        if victim.ends_with_its_pod:
            ends[victim.pk] = "evict", "its pod is evicted"
        elif is_spare(victim):
            ends[victim.pk] = "shrink", "it is released, and its group goes on without it"
        elif victim.pool.preempt_by != PreemptBy.SUSPEND or victim.waiting:
            ends[victim.pk] = "requeue", "it goes back to the queue"
        else:
            ends[victim.pk] = "suspend", "it is suspended, and goes on when its GPUs have room for it"
            may_suspend.append(victim)
    for key, obstacle in find_obstacles(may_suspend).items():
        ends[key] = "requeue", f"it goes back to the queue, as it cannot be suspended. {obstacle}"
    return ends


def plans(pool: Pool, claims: Sequence[Claim], *, now: datetime | None = None) -> list[Plan]:
    """Return the plan of each claim, in turn, given the plans before it. Claims without a plan that works are left out.

    Claims over which something raises are logged and left out, and the others are planned anew.
    """
    left = list(claims)
    while left:
        view, found = _View(pool, left, now or timezone.now()), list[Plan]()
        for claim in left:
            try:
                plan = view.plan(claim)
            except SESSION_LOST:
                raise
            except Exception:
                logger.exception("pool %s: who would go for claim %s cannot be said", pool.name, claim.uid)
                left.remove(claim)
                break
            if plan is not None:
                found.append(plan)
        else:
            return found
    return []


class _View:
    """A pool, the claims that reclaim, and their cohorts, at one moment."""

    def __init__(self, pool: Pool, claims: Sequence[Claim], now: datetime) -> None:
        self.pool, self.now = pool, now
        self.cohorts = {claim.tenant.cohort for claim in claims if claim.tenant.cohort is not None}
        self.asking = {claim.tenant_id for claim in claims}
        self.quotas: dict[int, list[ResourceQuota]] = defaultdict(list)
        # The holdings of members with a limit, including the claims planned for.
        self.members_hold: dict[tuple[int, int | None], Counter[str]] = {}
        for quota in _quotas(pool).filter(Q(tenant__cohort__in=self.cohorts) | Q(tenant__in=self.asking)):
            self.quotas[quota.tenant_id].append(quota)
        self.levels = organisation_quotas.levels_above(rows[0].tenant for rows in self.quotas.values())
        # Nominations are decided anew here, so they withhold nothing.
        self.reserved: Reserved = replace(read_reserved(pool, now=now), nominated={})
        fleet = Fleet(read_fleet(pool), read_nodes(pool), policy=pool.placement_policy)
        books = self._books()
        self.members: dict[str, list[Claim]] = defaultdict(list)
        # The unit of the group of each spare member, by the member's own.
        self.spare: dict[str, str] = {}
        borrowers = [
            key for key, accounts in books.accounts.items() if any(item.borrowed for item in accounts.values())
        ]
        self.scene = Scene(fleet, books, self._living(borrowers))
        for gone in self._leaving():
            self.scene.leave(gone)

    def plan(self, claim: Claim) -> Plan | None:
        """Return the plan for one claim; it counts for the next one."""
        amounts = self._due(claim)
        if amounts is None:
            return None
        bounds = ReclaimBounds(
            own_by_priority=self.pool.preempt_by_priority, from_others=self._within_hard(claim, amounts)
        )
        if not (bounds.own_by_priority or bounds.from_others):
            return None
        wanting = Claimant(str(claim.uid), str(claim.tenant_id), request_of(claim), amounts, claim.priority)
        self.scene.held = self.reserved.withheld_from(claim, self.scene.fleet.gpus)
        if (found := reclaim(self.scene, wanting, bounds)) is None:
            return None
        victims = tuple(dict.fromkeys(member for item in found.claims for member in self._members_of(item.claim)))
        if not self._within_member(claim, victims):
            return None
        self.scene.settle(wanting, found)
        shares = {_name(quota): quota.share_id for quota in self.quotas[claim.tenant_id] if quota.share_id}
        return Plan(claim, found, victims, frozenset(shares[key] for key in amounts if key in shares))

    def _members_of(self, unit: str) -> list[Claim]:
        """Return the claims that go with the unit: of an elastic group its spare members, first."""
        return [*(self.members[one][0] for one, whole in self.spare.items() if whole == unit), *self.members[unit]]

    def _due(self, claim: Claim) -> dict[str, int] | None:
        """Return what is still to be charged for the claim; None if that can never be."""
        quotas = self.quotas[claim.tenant_id]
        total = claim.amounts
        due = {resource: amount - claim.charged[resource] for resource, amount in total.items()}
        covered = {quota.resource for quota in quotas}
        if any(due[resource] > 0 and resource not in covered for resource in ZERO_WITHOUT_ROW):
            return None
        try:
            refuse_spent(claim.tenant)
        except BudgetExceeded:
            return None
        return self._amounts(claim, due)

    def _within_member(self, claim: Claim, victims: Iterable[Claim]) -> bool:
        """Return True if its member may hold the claim once these have gone: else it would be refused then."""
        limits, whose = member_limits.limits_of(claim.tenant, claim.user_id), (claim.tenant_id, claim.user_id)
        if not limits or claim.user_id is None:
            return True
        if whose not in self.members_hold:
            self.members_hold[whose] = member_limits.amounts_held(claim.tenant, claim.user_id)
        then = self.members_hold[whose].copy()
        for resource, amount in claim.amounts.items():
            then[resource] += amount - claim.charged[resource]
        for victim in victims:
            if (victim.tenant_id, victim.user_id) == whose:
                then.subtract(victim.charged)
        if any(then[resource] > max(hard, self.members_hold[whose][resource]) for resource, hard in limits.items()):
            return False
        self.members_hold[whose] = then
        return True

    def _within_hard(self, claim: Claim, amounts: dict[str, int]) -> bool:
        """Return True if the claim's tenant lends, and stays within its own quota with the claim."""
        lends = any(quota.share_id and quota.hard for quota in self.quotas[claim.tenant_id])
        return lends and self.scene.books.within_nominal(str(claim.tenant_id), amounts)

    def _books(self) -> Books:
        lendable: dict[str, int] = {}
        accounts: dict[str, dict[str, Account]] = {}
        for key, quotas in self.quotas.items():
            mine = accounts.setdefault(str(key), {})
            for quota in quotas:
                if quota.hard is None:
                    continue
                if quota.share is None:
                    # Without a cohort: all of it is kept, and nothing is added.
                    lendable[_name(quota)] = 0
                    mine[_name(quota)] = Account(quota.hard, quota.hard, quota.hard, quota.used)
                else:
                    lendable[_name(quota)] = quota.share.lendable
                    mine[_name(quota)] = Account(quota.hard, quota.hard - quota.lendable, quota.most, quota.used)
        weights = Tenant.objects.filter(cohort__in=self.cohorts).values_list("pk", "weight")
        rows = (row for levels in self.levels.values() for row in levels)
        levels = {_level_name(row): row.hard - row.used for row in rows if row.hard is not None}
        return Books(lendable, accounts, {str(key): weight for key, weight in weights}, levels)

    def _amounts(self, claim: Claim, due: dict[str, int]) -> dict[str, int]:
        """Return the amounts by share and level, of the limited quotas that cover the claim."""
        quotas = [row for row in self.quotas[claim.tenant_id] if row.pool_id in (None, claim.pool_id)]
        levels = [row for row in self.levels.get(claim.tenant_id, ()) if row.covers(claim.pool_id)]
        named = [(_name(row), row) for row in quotas] + [(_level_name(row), row) for row in levels]
        return {name: due[row.resource] for name, row in named if row.hard is not None and due.get(row.resource)}

    def _living(self, tenants: Iterable[str]) -> list[Holder]:
        """Return the holdings of these tenants' claims; claims in reservations are not reclaimed."""
        whose = Q(tenant__in=map(int, tenants))
        if self.pool.preempt_by_priority:
            whose |= Q(tenant__in=self.asking, pool=self.pool)
        rows = Claim.objects.filter(whose, HOLDS, OWN, reservation=None).select_related("tenant", "pool").order_by("pk")
        parts = self._parts(rows)
        spare = find_spare(rows)
        for claim in rows:
            unit = _unit(claim)
            if claim.pk in spare:
                self.spare[str(claim.uid)], unit = unit, str(claim.uid)
            self.members[unit].append(claim)
        return [self._one(unit, members, parts) for unit, members in self.members.items()]

    def _one(self, unit: str, members: Sequence[Claim], parts: dict[int, list[tuple[str, Request]]]) -> Holder:
        first = members[0]
        amounts: dict[str, int] = defaultdict(int)
        for claim in members:
            # What a claim that is being suspended is charged of its node's memory stays.
            goes = {**claim.charged, Resource.HOST_MEMORY_MIB: 0}
            for key, amount in self._amounts(claim, goes).items():
                amounts[key] += amount
        return Holder(
            unit,
            str(first.tenant_id),
            amounts,
            tuple(part for claim in members for part in parts.get(claim.pk, ())),
            since=max((claim.assigned_at or claim.created_at).timestamp() for claim in members),
            priority=max(claim.priority for claim in members),
            best_effort=all(claim.best_effort for claim in members),
            placed=any(not claim.waiting for claim in members),
            noticed=any(claim.preempt_at is not None for claim in members),
            spare=unit in self.spare,
        )

    def _leaving(self) -> list[Holder]:
        """Return the claims, of any tenant, that are being released or suspended on nodes that are online."""
        whose = Q(pool=self.pool) | Q(tenant__cohort__in=self.cohorts) | Q(tenant__in=self.asking)
        rows = Claim.objects.filter(whose, OWN, state__in=(ClaimState.RELEASING, ClaimState.SUSPENDING))
        # One that moves to other GPUs of its node takes their room instead.
        stays = Q(gpu__node__last_seen_at__lt=self.now - FRESH) | Q(other_gpu__isnull=False, state="suspending")
        away = Assignment.objects.filter(stays, claim__in=rows)
        rows = rows.exclude(pk__in=away.values("claim")).order_by("pk")
        parts = self._parts(rows)
        return [self._one(_unit(claim), [claim], parts) for claim in rows]

    def _parts(self, claims: QuerySet[Claim]) -> dict[int, list[tuple[str, Request]]]:
        """Return the holdings of each claim on each GPU of the pool."""
        live = Assignment.objects.filter(claim__in=claims, gpu__node__pool=self.pool)
        found: dict[int, list[tuple[str, Request]]] = defaultdict(list)
        for row in live.live().select_related("claim", "gpu").order_by("pk"):
            held = replace(
                request_of(row.claim),
                gpu_count=1,
                core_request=row.held_core,
                memory_mib=row.held_memory_mib,
                start=row.mig_start,
            )
            found[row.claim_id].append((row.gpu.uuid, held))
        return found


def _quotas(pool: Pool) -> QuerySet[ResourceQuota]:
    rows = ResourceQuota.objects.filter(Q(pool=pool) | Q(pool=None))
    return rows.select_related("share", "tenant", "pool").order_by("pk")


def _name(quota: ResourceQuota) -> str:
    """Return the name of the quota's share, or of the quota if it has none; shown to users."""
    whose = f"cohort {quota.tenant.cohort}" if quota.share_id else f"tenant {quota.tenant.slug}"
    return f"{quota.resource} of {whose} {_where(quota)}"


def _level_name(quota: OrganisationQuota) -> str:
    return f"{quota.resource} of organisation {quota.organisation.slug} {_where(quota)}"


def _where(quota: ResourceQuota | OrganisationQuota) -> str:
    return f"in pool {quota.pool.name}" if quota.pool else "over all pools"


def _unit(claim: Claim) -> str:
    """Return the key of what goes as a whole: a claim, a group, or the containers of a pod."""
    if claim.pod is not None and claim.ends_with_its_pod:
        return f"pod {claim.pod['uid']}"
    if claim.group_uid is not None:
        return f"group {claim.group_uid}"
    return str(claim.uid) if claim.group is None else f"group {claim.tenant_id} {claim.group}"
