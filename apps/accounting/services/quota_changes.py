"""Previews of changed quotas: quotas exceeded, and waiting claims that could start, or no longer.

The change itself is the real one, in a transaction that is rolled back. Its effect on the queue is computed from the
numbers before and after it, not by a round: a round locks GPUs and nodes, and a preview must not hold up anybody.
Claims are tried in the order of the queue on the GPUs as they are free now, before those of other tenants.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from apps.accounting.services.sums import Saved as SavedSums
from apps.accounting.services.sums import Sums
from apps.quotas.models import OrganisationQuota, Pool, ResourceQuota, Tenant
from apps.quotas.services import organisation_quotas
from apps.quotas.services.refusals import QuotaExceeded
from apps.scheduling.core import gangs
from apps.scheduling.core.placement import place
from apps.scheduling.core.values import GpuState, NodeState, Placed
from apps.scheduling.models import Claim
from apps.scheduling.services.charging.budgets import BudgetExceeded, refuse_spent
from apps.scheduling.services.claims.lifecycle import request_of
from apps.scheduling.services.cycles.queue import queue_entry
from apps.scheduling.services.fleet.devices import read_fleet, read_nodes, with_placement
from apps.scheduling.services.fleet.reserved import Reserved, read_reserved
from gpucloud.errors import GpucloudError

# The most claims listed; the rest is counted.
MOST_CLAIMS = 200

Reasons = list[dict[str, Any]]
Fleets = dict[int, dict[str, GpuState]]
Nodes = dict[int, list[NodeState]]
Saved = tuple[Fleets, dict[int, Reserved], SavedSums]


def preview(
    act: Callable[[], Any], *, tenant: Tenant, show: Callable[[Any], dict[str, Any]], joins: str | None = None
) -> dict[str, Any]:
    """Return the effects of a change of the tenant's quotas, and its answer. Raises whatever `act` raises.

    Beside the tenant, the others of its cohort are included, and those of the cohort that it `joins`: they lend to it
    and borrow from it.
    """
    shown, outlook, compared = _try(act, with_cohorts(tenant, joins), show)
    over = [_over(quota) for quota in outlook.sums.quotas if quota.excess or (quota.borrowed and _share_excess(quota))]
    return {**shown, "dry_run": True, "over": over, **compared}


def with_cohorts(tenant: Tenant, joins: str | None = None) -> list[Tenant]:
    """Return the tenant, the others of its cohort, and those of the cohort that it joins."""
    return list(Tenant.objects.filter(Q(pk=tenant.pk) | Q(cohort__in={tenant.cohort, joins} - {None})))


def preview_of_levels(
    act: Callable[[], Any], *, tenants: Iterable[Tenant], organisations: Collection[int] = ()
) -> dict[str, Any]:
    """Return the effects of a change of an organisation's quota, or of a move in the tree. Raises what `act` raises.

    `levels` are the quotas of the organisations above these tenants, of those given by key, and of all above them,
    before and after; those that do not differ and are not exceeded are left out.
    """
    whose = list(tenants)
    keys = {*organisations, *(item.organisation_id for item in whose if item.organisation_id is not None)}

    def read_levels(_: Any = None) -> dict[int, OrganisationQuota]:
        now = Tenant.objects.filter(pk__in=[item.pk for item in whose]).exclude(organisation=None)
        above = keys | set(now.order_by().values_list("organisation_id", flat=True))
        return {row.pk: row for row in organisation_quotas.read(above)}

    old = read_levels()
    new, _, compared = _try(act, whose, read_levels)
    levels = [_level(old.get(pk), new.get(pk)) for pk in sorted({*old, *new})]
    return {"dry_run": True, "levels": [row for row in levels if row["excess"] or row["changed"]], **compared}


def _try(
    act: Callable[[], Any], tenants: list[Tenant], show: Callable[[Any], dict[Any, Any]]
) -> tuple[dict[Any, Any], "_Outlook", dict[str, Any]]:
    """Return what is shown after `act`, the quotas then, and the waiting claims compared; nothing is changed."""
    queue = _Queue(tenants)
    spent = {item.pk: _spent_reasons(item) for item in {claim.tenant for claim in queue.claims}}
    with transaction.atomic():
        before = queue.outlook().of(queue.claims, spent)
        shown = show(act())
        outlook = queue.outlook()
        transaction.set_rollback(True)
    return shown, outlook, queue.compared(before, outlook.of(queue.claims, spent))


def _level(old: OrganisationQuota | None, new: OrganisationQuota | None) -> dict[str, Any]:
    """Return a quota of an organisation before and after; None: there is none."""
    row = new or old
    assert row is not None
    before, after = [(one and one.hard, 0 if one is None else one.used) for one in (old, new)]
    return {
        "organisation": row.organisation.slug,
        "pool": row.pool and row.pool.name,
        "resource": row.resource,
        "hard_before": before[0],
        "used_before": before[1],
        "hard": after[0],
        "used": after[1],
        "excess": 0 if new is None else new.excess,
        "free": None if new is None else new.free,
        "changed": (old is None) != (new is None) or before != after,
    }


def preview_of_bounds(act: Callable[[], Any], *, tenant: Tenant) -> dict[str, Any]:
    """Return the effects of a change of a budget or of a member's limit; `row` is its answer. Raises what `act` raises.

    Budgets and limits are read claim by claim, so the change stays in place that long: it locks nothing that a charge
    needs.
    """
    queue = _Queue([tenant])
    before = queue.outlook().of(queue.claims, {tenant.pk: _spent_reasons(tenant)})
    with transaction.atomic():
        row = act()
        after = queue.outlook().of(queue.claims, {tenant.pk: _spent_reasons(tenant)})
        transaction.set_rollback(True)
    return {"row": row, **queue.compared(before, after)}


class _Queue:
    """The first claims that wait for these tenants, and the GPUs that they wait for."""

    def __init__(self, tenants: list[Tenant]) -> None:
        self.tenants = tenants
        waiting = Claim.objects.in_queue().filter(tenant__in=tenants)
        waiting = waiting.select_related("tenant", "pool", "reservation")
        self.claims = list(waiting.order_by("-priority", "pk")[:MOST_CLAIMS])
        pools = {claim.pool_id: claim.pool for claim in self.claims}
        self.fleets = {pk: {gpu.uuid: gpu for gpu in read_fleet(pool)} for pk, pool in pools.items()}
        self.nodes = {pk: read_nodes(pool) for pk, pool in pools.items()}
        self.line = _Line(waiting, self.claims, pools)
        self.left_out = waiting.count() - len(self.claims)

    def outlook(self) -> "_Outlook":
        """Return the quotas as they are at this moment."""
        return _Outlook(self.tenants, self.fleets, self.nodes, self.line)

    def compared(self, before: Mapping[UUID, Reasons], after: Mapping[UUID, Reasons]) -> dict[str, Any]:
        """Return the claims that could start after a change, those that would wait, and for which that is new."""
        told = [(_claim_facts(claim), before[claim.uid], after[claim.uid]) for claim in self.claims]
        return {
            "runnable": [{**facts, "changed": bool(old)} for facts, old, new in told if not new],
            "pending": [{**facts, "changed": not old, "reasons": new} for facts, old, new in told if new],
            "claims_left_out": self.left_out,
        }


class _Line:
    """The gangs of the queue, the claims that may not be asked yet, and the reservations."""

    def __init__(self, waiting: QuerySet[Claim], claims: Iterable[Claim], pools: Mapping[int, Pool]) -> None:
        now = timezone.now()
        self.reserved = {pk: read_reserved(pool, now=now) for pk, pool in pools.items()}
        self.early: dict[str, Reasons] = {}
        # All claims of a gang, by each member's uid.
        self.gangs: dict[str, list[Claim]] = {}
        there = {str(claim.uid): claim for claim in claims}
        # Also claims beyond the first ones: a gang may wait for them.
        special = list(waiting.filter(Q(group__isnull=False) | Q(start_at__gt=now)))
        for pk in pools:
            of_pool = [there.get(str(claim.uid), claim) for claim in special if claim.pool_id == pk]
            by_uid = {str(claim.uid): claim for claim in of_pool}
            asks, early = gangs.ready(map(queue_entry, of_pool), now=now.timestamp())
            self.early |= {uid: [asdict(reason) for reason in why.reasons] for uid, why in early.items()}
            for ask in asks:
                members = [by_uid[claim.id] for claim in gangs.placing_order(ask)]
                self.gangs |= dict.fromkeys((claim.id for claim in ask.members), members)


class _Outlook:
    """The tenants' quotas and the pools' GPUs at one moment, filled up claim by claim."""

    def __init__(self, tenants: Iterable[Tenant], fleets: Fleets, nodes: Nodes, line: _Line) -> None:
        self.line = line
        self.reserved = {pk: reserved.at(reserved.now) for pk, reserved in line.reserved.items()}
        # The reasons for which gangs that were tried wait, by member.
        self.tried: dict[str, Reasons] = {}
        rows = ResourceQuota.objects.filter(tenant__in=tenants).select_related("tenant", "pool", "share")
        self.sums = Sums(rows.order_by("pk"))
        self.fleets, self.nodes = dict(fleets), nodes

    def of(self, claims: Iterable[Claim], spent: dict[int, Reasons]) -> dict[UUID, Reasons]:
        """Return the reasons for which each claim would go on waiting; none if it could start."""
        return {claim.uid: spent[claim.tenant_id] or self._together(claim) for claim in claims}

    def _together(self, claim: Claim) -> Reasons:
        """Try the claim alone, or with its gang: all of it or nothing."""
        uid = str(claim.uid)
        if uid in self.line.early:
            return self.line.early[uid]
        if uid not in self.line.gangs:
            return self._start(claim)
        if uid not in self.tried:
            members, saved = self.line.gangs[uid], self._save()
            why = next((reasons for member in members if (reasons := self._start(member))), [])
            if why:
                self._undo(saved)
            self.tried |= {str(member.uid): why for member in members}
        return self.tried[uid]

    def _save(self) -> Saved:
        reserved = {pk: replace(item, holds=list(item.holds), _until={}) for pk, item in self.reserved.items()}
        return dict(self.fleets), reserved, self.sums.save()

    def _undo(self, saved: Saved) -> None:
        self.fleets, self.reserved, before = saved
        self.sums.undo(before)

    def _start(self, claim: Claim) -> Reasons:
        """Try the claim as a round does: a claim that does not fit is not charged."""
        fleet, reserved = self.fleets[claim.pool_id], self.reserved[claim.pool_id]
        held = reserved.withheld_from(claim, fleet.values)
        answer = place(fleet.values(), request_of(claim), nodes=self.nodes[claim.pool_id], held=held)
        if not isinstance(answer, Placed):
            return [asdict(reason) for reason in answer.reasons]
        if not claim.charged_vgpus:
            try:
                self.sums.charge(claim)
            except QuotaExceeded as error:
                return [_reason(error)]
        reserved.record_placement(claim, answer.gpus)
        self.fleets[claim.pool_id] = with_placement(fleet, answer, request_of(claim))
        return []


def _reason(error: GpucloudError) -> dict[str, Any]:
    return {"code": error.code, "gpus": 0, "detail": error.detail}


def _spent_reasons(tenant: Tenant) -> Reasons:
    try:
        refuse_spent(tenant)
    except BudgetExceeded as error:
        return [_reason(error)]
    return []


def _share_excess(quota: ResourceQuota) -> int:
    """Return what the cohort has taken above what it lends; its borrowers would have to give that back."""
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


def _claim_facts(claim: Claim) -> dict[str, Any]:
    return {"claim": str(claim.uid), "tenant": claim.tenant.slug, "name": claim.name}
