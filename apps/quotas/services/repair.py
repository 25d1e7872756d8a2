"""Repair of a quota's amounts from its claims. Only on an operator's request, never automatically."""

import uuid
from collections import Counter
from collections.abc import Collection

from django.db import transaction
from django.db.models import Sum

from apps.quotas.models import CohortShare, LedgerEntry, Organisation, ResourceQuota, Tenant
from apps.quotas.principals import Principal
from apps.quotas.providers import claim_charges
from apps.quotas.services import audit, charging, cohorts, organisation_quotas


@transaction.atomic
def repair_quotas(*, principal: Principal, quota_ids: Collection[int]) -> None:
    """Reset `used`, `borrowed` and the ledger to the sums of the tenants' claims.

    Recount all shares and the quotas of all organisations.
    """
    principal.require_operator()
    organisation_quotas.serialize_tree()
    quotas = ResourceQuota.objects.filter(pk__in=quota_ids).select_related("tenant", "pool").order_by("pk")
    # Exclusive: no charge of these tenants is in progress, so their claims are complete.
    inside = Tenant.objects.exclude(organisation=None)
    charging.lock_tenants(*(quota.tenant for quota in quotas), *inside, exclusive=True)
    shares = list(CohortShare.objects.values_list("pk", flat=True))
    cohorts.lock(shares)
    _recount_organisations(principal)
    before = _sums()
    for quota in quotas.all():
        _repair(quota, principal=principal)
    cohorts.recount(shares, may_exceed=True)
    for share, sums in _sums().items():
        # A share that was created meanwhile was not repaired.
        if sums != (old := before.get(share, sums)):
            _note(share, old, sums, principal=principal)


def _recount_organisations(principal: Principal) -> None:
    every = organisation_quotas.lock(Organisation.objects.order_by().values_list("pk", flat=True))
    for quota, used in organisation_quotas.recount(every):
        before, after = {"used": used}, {"used": quota.used}
        audit.record(principal, "organisation-quota.repair", quota, before=before, after=after)


def _sums() -> dict[CohortShare, dict[str, int]]:
    """Return the amounts of each share."""
    rows = CohortShare.objects.select_related("pool")
    return {share: {"lendable": share.lendable, "taken": share.taken} for share in rows}


def _note(share: CohortShare, before: dict[str, int], after: dict[str, int], *, principal: Principal) -> None:
    what = {"resource": share.resource, "pool": share.pool and share.pool.name}
    audit.record(
        principal,
        "cohort.repair",
        audit.Named("cohort", share.cohort),
        before={**what, **before},
        after={**what, **after},
    )


def _repair(quota: ResourceQuota, *, principal: Principal) -> None:
    held = claim_charges.get().charged_by_claim(quota.tenant, quota.pool, quota.resource)
    before = {"used": quota.used, "borrowed": quota.borrowed}
    quota.used = sum(held.values())
    quota.borrowed = 0 if quota.hard is None else max(0, quota.used - quota.hard)
    quota.excess = 0 if quota.most is None else max(0, quota.used - quota.most)
    quota.save(update_fields=["used", "borrowed", "excess", "updated_at"])
    missing = Counter(held)
    missing.subtract(_ledger_sums(quota))
    for claim_uid, amount in missing.items():
        if amount:
            charging.enter(quota, LedgerEntry.Kind.REPAIR, amount, claim_uid, principal)
    audit.record(
        principal, "quota.repair", quota, before=before, after={"used": quota.used, "borrowed": quota.borrowed}
    )


def _ledger_sums(quota: ResourceQuota) -> dict[uuid.UUID, int]:
    entries = LedgerEntry.objects.filter(tenant=quota.tenant_id, pool=quota.pool_id, resource=quota.resource)
    sums = entries.filter(claim_uid__isnull=False).order_by().values_list("claim_uid").annotate(Sum("amount"))
    return dict(sums)
