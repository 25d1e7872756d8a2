"""Setting and removing quotas. What a claim takes from them is in `charging`."""

from django.db import IntegrityError, transaction

from apps.quotas.models import LedgerEntry, Pool, ResourceQuota, Tenant
from apps.quotas.principals import Principal
from apps.quotas.services import audit, charging
from apps.quotas.services.tenants import InUse, NameTaken
from gpucloud.api import etags


@transaction.atomic
def create_quota(
    *, principal: Principal, tenant: Tenant, pool: Pool | None, resource: str, hard: int | None
) -> ResourceQuota:
    """Give a tenant a quota; what its claims hold already counts, and stays theirs.

    Raises NameTaken where it has one for this pool and resource: change that one.
    """
    principal.require_operator()
    charging.lock_tenant(tenant, alone=True)
    try:
        with transaction.atomic():
            quota = ResourceQuota.objects.create(tenant=tenant, pool=pool, resource=resource, hard=hard)
    except IntegrityError as error:
        taken = ResourceQuota.objects.get(tenant=tenant, pool=pool, resource=resource)
        raise NameTaken(
            f"{tenant.slug} has a quota of {resource} for {pool or 'all pools'}: PATCH /api/v1/quotas/{taken.pk}/.",
            quota=taken.pk,
        ) from error
    _note(quota, principal=principal, action="quota.create", before=None)
    charging.count_held(quota, principal=principal)
    return quota


@transaction.atomic
def change_quota(
    *, principal: Principal, quota: ResourceQuota, hard: int | None, versions: etags.Versions = None
) -> ResourceQuota:
    """Set `hard`. Below what is used nothing is taken away and nothing new is granted. Raises PreconditionFailed."""
    principal.require_operator()
    quota = ResourceQuota.objects.select_for_update().get(pk=quota.pk)
    etags.check(quota.version, versions)
    before = {"hard": quota.hard}
    excess = 0 if hard is None else max(0, quota.used - hard)
    quota.change(hard=hard, excess=excess)
    _note(quota, principal=principal, action="quota.set", before=before)
    return quota


@transaction.atomic
def delete_quota(*, principal: Principal, quota: ResourceQuota, versions: etags.Versions = None) -> None:
    """Remove a quota that nobody uses. Raises InUse, PreconditionFailed."""
    principal.require_operator()
    quota = ResourceQuota.objects.select_for_update().get(pk=quota.pk)
    etags.check(quota.version, versions)
    if quota.used:
        raise InUse(f"{quota.used} of {quota.resource} are in use: release the claims first.", used=quota.used)
    before = {"hard": quota.hard}
    quota.hard = 0
    _note(quota, principal=principal, action="quota.delete", before=before)
    quota.delete()


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
        principal=principal,
        action=action,
        object_type="quota",
        object_id=quota.pk,
        tenant=quota.tenant,
        before=before,
        after={"pool": quota.pool and quota.pool.name, "resource": quota.resource, "hard": quota.hard},
    )
