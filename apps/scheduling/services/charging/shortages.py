"""Quota reasons of waiting claims, computed from the present rows when a claim is read.

A stored quota reason has the numbers of the last scheduling cycle that refused the claim; quotas and their use change
more often than that. So the numbers of an uncharged claim are computed when it is shown: one query for the quotas of
all tenants, and one of each member's limits.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from apps.quotas.models import OrganisationQuota, Resource, ResourceQuota
from apps.quotas.services import charging, member_limits, organisation_quotas
from apps.quotas.services.refusals import MemberLimitExceeded, QuotaExceeded, quota_exceeded
from apps.scheduling.core.nearest import QuotaBounds
from apps.scheduling.core.values import Request
from apps.scheduling.models import Claim
from apps.scheduling.models.share import amounts

AVAILABLE: dict[str, Any] = {
    "code": "quota-available",
    "gpus": 0,
    "detail": "Quota is available now; it is tried in the next scheduling cycle",
}
COMPUTED = frozenset({QuotaExceeded.code, MemberLimitExceeded.code, AVAILABLE["code"]})


def find_shortages(
    claim: Claim,
    quotas: Iterable[ResourceQuota],
    *,
    limits: Mapping[str, int],
    held: Mapping[str, int],
    wanted: Mapping[str, int] | None = None,
    levels: Iterable[OrganisationQuota] = (),
) -> list[QuotaExceeded]:
    """Return a refusal for everything that the claim's charge is short of. `quotas` are the tenant's, with shares.

    `limits` and `held` are the member's, by resource; `wanted` are other amounts than the claim's own; `levels` are the
    quotas of the organisations above.
    """
    more = {resource: amount - claim.charged[resource] for resource, amount in (wanted or claim.amounts).items()}
    asked = {resource: amount for resource, amount in more.items() if amount > 0}
    found: list[QuotaExceeded] = [
        MemberLimitExceeded(resource=resource, hard=limits[resource], used=held[resource], requested=asked[resource])
        for resource in asked
        if resource in limits and held[resource] + asked[resource] > limits[resource]
    ]
    covering = [quota for quota in quotas if quota.pool_id in (None, claim.pool_id) and quota.resource in asked]
    found += charging.missing_quotas(asked, covering, pool=claim.pool)
    for quota in covering:
        amount = asked[quota.resource]
        if quota.free is not None and amount > quota.free:
            facts = {} if quota.share is None else {"free": quota.free, "lent": quota.lent}
            found.append(quota_exceeded(quota, amount, **facts))
    return found + organisation_quotas.shortages([row for row in levels if row.covers(claim.pool_id)], asked)


class MemberHoldings:
    """The limits and the holdings of claims' members, read once for each."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, int | None], tuple[dict[str, int], Counter[str]]] = {}

    def of(self, claim: Claim) -> tuple[dict[str, int], Counter[str]]:
        """Return the limits of the claim's member, and what the member holds, by resource."""
        key = (claim.tenant_id, claim.user_id)
        if key not in self.known:
            limits = member_limits.limits_of(claim.tenant, claim.user_id)
            held = member_limits.amounts_held(claim.tenant, claim.user_id) if limits and claim.user_id else Counter()
            self.known[key] = limits, held
        return self.known[key]


class TenantQuotas:
    """The present quotas and member limits of some tenants, without locks."""

    def __init__(self, tenant_ids: Iterable[int]) -> None:
        rows = ResourceQuota.objects.filter(tenant__in=set(tenant_ids)).select_related("pool", "share", "tenant")
        self._quotas: dict[int, list[ResourceQuota]] = defaultdict(list)
        for quota in rows.order_by("pk"):
            self._quotas[quota.tenant_id].append(quota)
        self._levels = organisation_quotas.levels_above(quotas[0].tenant for quotas in self._quotas.values())
        self._members = MemberHoldings()

    def shortages(self, claim: Claim, wanted: Mapping[str, int] | None = None) -> list[QuotaExceeded]:
        """Return a refusal for everything that the claim's charge is short of, or another charge in its place."""
        limits, held = self._members.of(claim)
        quotas, levels = self._quotas[claim.tenant_id], self._levels.get(claim.tenant_id, ())
        return find_shortages(claim, quotas, limits=limits, held=held, wanted=wanted, levels=levels)


def waits_for_quota(claim: Claim) -> bool:
    """Return True if the claim waits uncharged because of its tenant's quota; not in the room of a reservation."""
    refused = any(reason["code"] in COMPUTED for reason in claim.reasons)
    return refused and claim.waiting and claim.charged_vgpus == 0 and claim.reservation_id is None


def refresh_quota_reasons(claims: Sequence[Claim]) -> Sequence[Claim]:
    """Replace the quota reasons of these claims, as they were read, by the present ones; nothing is stored."""
    waiting = [claim for claim in claims if waits_for_quota(claim)]
    if waiting:
        quotas = TenantQuotas(claim.tenant_id for claim in waiting)
        for claim in waiting:
            claim.reasons = present_reasons(claim, quotas.shortages(claim))
    return claims


def present_reasons(claim: Claim, shortages: Iterable[QuotaExceeded]) -> list[dict[str, Any]]:
    """Return the claim's reasons with these quota reasons instead of the stored ones."""
    others = [reason for reason in claim.reasons if reason["code"] not in COMPUTED]
    quota = [reason for error in shortages for reason in reasons_of(error)]
    return [*quota, *others] or [AVAILABLE]


def reasons_of(error: QuotaExceeded) -> list[dict[str, Any]]:
    """Return a reason of a claim for each shortage of the error."""
    return [{"code": item["code"], "gpus": 0, "detail": item["detail"]} for item in error.shortages]


def quota_bounds(claim: Claim, quotas: TenantQuotas) -> QuotaBounds:
    """Return what the claim's quotas allow now, for suggestions."""

    def allow(request: Request) -> bool:
        wanted = amounts(gpu_count=request.gpu_count, core=request.core_request, memory_mib=request.memory_mib)
        return not quotas.shortages(claim, wanted)

    free = [
        item["available"]
        for error in quotas.shortages(claim)
        for item in error.shortages
        if item["resource"] == Resource.MEMORY_MIB
    ]
    return QuotaBounds(allow, min(free) // claim.gpu_count if free else None)
