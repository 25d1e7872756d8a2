"""Creation, change and removal of quotas. `charging` takes claims from them."""

from typing import Any

from django.db import transaction

from apps.quotas.models import EventKind, LedgerEntry, Pool, ResourceQuota, Tenant
from apps.quotas.principals import Principal
from apps.quotas.services import audit, charging, cohorts, overcommit
from apps.quotas.services.names import NameTaken, refuse_taken
from apps.quotas.services.tenants import InUse
from apps.quotas.services.webhooks.outbox import tell
from gpucloud.api import etags

# Fields of a quota that an admin sets.
SETTABLE = ("hard", "borrowing_limit", "lending_limit")


@transaction.atomic
def create_quota(
    *,
    principal: Principal,
    tenant: Tenant,
    pool: Pool | None,
    resource: str,
    hard: int | None,
    borrowing_limit: int | None = None,
    lending_limit: int | None = None,
) -> ResourceQuota:
    """Create a tenant's quota; what its claims hold already counts, and stays.

    Raises NameTaken if one exists for this pool and resource, and Overcommitted.
    """
    principal.require_operator()
    promised = overcommit.promises(pool)
    charging.lock_tenants(tenant, exclusive=True)
    tenant.refresh_from_db(fields=["cohort"])
    quota = ResourceQuota(tenant=tenant, pool=pool, resource=resource, hard=hard)
    quota.borrowing_limit, quota.lending_limit = borrowing_limit, lending_limit
    quota.share = cohorts.share_for(quota, tenant.cohort)
    cohorts.lock([quota.share_id])

    def describe() -> NameTaken:
        taken = ResourceQuota.objects.get(tenant=tenant, pool=pool, resource=resource)
        return NameTaken(
            f"{tenant.slug} already has a quota of {resource} for {pool or 'all pools'}: change quota {taken.pk}.",
            quota=taken.pk,
        )

    with refuse_taken(describe):
        quota.save()
    _note(quota, principal=principal, action="quota.create", before=None)
    charging.count_held(quota, principal=principal)
    cohorts.recount([quota.share_id], may_exceed=True)
    overcommit.refuse_growth(promised)
    return quota


@transaction.atomic
def change_quota(
    *, principal: Principal, quota: ResourceQuota, versions: etags.Versions = None, **values: int | None
) -> ResourceQuota:
    """Set `hard` and the two limits. Below `used` nothing is taken away and nothing new is granted.

    Raises PreconditionFailed, and CohortInUse if less would be lent than others have borrowed: the tenant's kept part
    would be promised twice.
    """
    principal.require_operator()
    assert values.keys() <= set(SETTABLE), values
    promised = overcommit.promises(quota.pool)
    quota = _lock_row(quota, versions)
    before = {name: getattr(quota, name) for name in values}
    for name, value in values.items():
        setattr(quota, name, value)
    excess = 0 if quota.most is None else max(0, quota.used - quota.most)
    borrowed = 0 if quota.hard is None else max(0, quota.used - quota.hard)
    more = excess > quota.excess
    quota.change(**values, excess=excess, borrowed=borrowed)
    cohorts.recount([quota.share_id], may_exceed=values.get("lending_limit", 0) == before.get("lending_limit", 0))
    overcommit.refuse_growth(promised)
    _note(quota, principal=principal, action="quota.set", before=before)
    if more:
        facts: dict[str, Any] = {"quota": quota.pk, "resource": quota.resource, "pool": quota.pool and quota.pool.name}
        tell(EventKind.QUOTA_EXCEEDED, tenant=quota.tenant, **facts, hard=quota.hard, used=quota.used, excess=excess)
    return quota


@transaction.atomic
def delete_quota(*, principal: Principal, quota: ResourceQuota, versions: etags.Versions = None) -> None:
    """Remove a quota that is neither used nor needed by borrowers.

    Raises InUse, CohortInUse, PreconditionFailed.
    """
    principal.require_operator()
    promised = overcommit.promises(quota.pool)
    # Exclusive: a concurrent charge would lose the row that it has just read.
    charging.lock_tenants(quota.tenant, exclusive=True)
    quota = _lock_row(quota, versions)
    if quota.used:
        raise InUse(f"{quota.used} of {quota.resource} are in use: release the claims first.", used=quota.used)
    before = {name: getattr(quota, name) for name in SETTABLE}
    quota.hard = 0
    _note(quota, principal=principal, action="quota.delete", before=before)
    quota.delete()
    cohorts.recount([quota.share_id], may_exceed=False)
    overcommit.refuse_growth(promised)


def _lock_row(quota: ResourceQuota, versions: etags.Versions) -> ResourceQuota:
    """Return the quota under its own lock and those before it. Raises PreconditionFailed."""
    charging.lock(quota.tenant)
    return etags.lock(quota, versions, "tenant", "pool")


def _note(quota: ResourceQuota, *, principal: Principal, action: str, before: dict[str, int | None] | None) -> None:
    LedgerEntry.objects.create(
        tenant_id=quota.tenant_id,
        pool_id=quota.pool_id,
        resource=quota.resource,
        kind=LedgerEntry.Kind.SET,
        amount=0,
        used=quota.used,
        hard=quota.hard,
        actor=principal.name,
    )
    audit.record(
        principal,
        action,
        quota,
        before=before,
        after={
            "pool": quota.pool and quota.pool.name,
            "resource": quota.resource,
            **{name: getattr(quota, name) for name in SETTABLE},
        },
    )
