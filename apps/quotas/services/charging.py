"""Taking from quotas and giving back: the place where nobody gets more than they have.

The database decides the race. Each charge is one UPDATE whose WHERE clause is the check, so two requests cannot both
take the last gigabyte; a CHECK constraint stands behind it. Rows are visited in primary-key order, so two requests
cannot hold each other's. A charge is all or nothing: the first quota without room raises, and the transaction of the
caller takes back what was taken before it. The row's version is left alone: it is the entity tag of what admins set,
and would be stale all the time in a busy tenant.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from django.db import connection, transaction
from django.db.models import F, Q
from django.db.models.functions import Greatest
from django.utils import timezone

from apps.quotas import holdings
from apps.quotas.models import LedgerEntry, Pool, ResourceQuota, Tenant
from apps.quotas.models.quota import ZERO_WITHOUT_ROW
from apps.quotas.models.row import unlimited_or_room
from apps.quotas.principals import Principal
from gpucloud.errors import Conflict

# What a claim takes of each resource, e.g. {"core_percent": 30, "memory_mib": 8192, "vgpus": 1, "gpus": 0}.
Amounts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Whose:
    """For whom something is charged, by whom, and for which claim."""

    principal: Principal
    tenant: Tenant
    pool: Pool
    claim_uid: uuid.UUID


class QuotaExceeded(Conflict):
    """The tenant's quota has no room for this."""

    code = "quota-exceeded"
    title = "Quota exceeded"

    def __init__(self, *, resource: str, pool: str | None, hard: int, used: int, requested: int) -> None:
        where = f"in pool {pool}" if pool else "over all pools"
        free = max(0, hard - used)
        super().__init__(
            f"{requested} of {resource} were asked for; {free} of {hard} are free {where}.",
            resource=resource,
            pool=pool,
            hard=hard,
            used=used,
            requested=requested,
        )


def lock_tenant(tenant: Tenant, *, alone: bool = False) -> None:
    """Keep the set of the tenant's quotas as it is: shared by charges and refunds, `alone` for whoever makes one.

    Without it a claim under way while a quota is made would be charged to the quotas of before, never to the new one.
    """
    strength = "UPDATE" if alone else "KEY SHARE"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT 1 FROM quotas_tenant WHERE id = %s FOR {strength}", [tenant.pk])  # noqa: S608


def count_held(quota: ResourceQuota, *, principal: Principal) -> None:
    """Charge a quota just made with what the tenant's claims hold already; above `hard` it is `excess`."""
    total = 0
    for claim_uid, amount in holdings.held(quota.tenant, quota.pool, quota.resource).items():
        total += amount
        excess = 0 if quota.hard is None else max(0, total - quota.hard)
        ResourceQuota.objects.filter(pk=quota.pk).update(used=total, excess=excess)
        _enter(quota, LedgerEntry.Kind.CHARGE, amount, claim_uid, principal)
    quota.refresh_from_db()


@transaction.atomic
def charge(whose: Whose, *, amounts: Amounts) -> None:
    """Take every amount from every quota that covers it, or take nothing. Raises QuotaExceeded."""
    wanted = {resource: amount for resource, amount in amounts.items() if amount > 0}
    lock_tenant(whose.tenant)
    quotas = list(_covering(whose, wanted))
    covered = {quota.resource for quota in quotas}
    for resource in ZERO_WITHOUT_ROW:
        if resource in wanted and resource not in covered:
            raise QuotaExceeded(resource=resource, pool=whose.pool.name, hard=0, used=0, requested=wanted[resource])
    for quota in quotas:
        amount = wanted[quota.resource]
        if not _take(quota, amount):
            quota.refresh_from_db(fields=["hard", "used"])
            raise QuotaExceeded(
                resource=quota.resource,
                pool=quota.pool.name if quota.pool else None,
                hard=quota.hard or 0,
                used=quota.used,
                requested=amount,
            )
        _enter(quota, LedgerEntry.Kind.CHARGE, amount, whose.claim_uid, whose.principal)


@transaction.atomic
def refund(whose: Whose, *, amounts: Amounts) -> None:
    """Give back what the claim's own ledger says it took, at most `amounts`.

    A quota that was made after the claim took nothing from it, and gets nothing back.
    """
    wanted = {resource: amount for resource, amount in amounts.items() if amount > 0}
    lock_tenant(whose.tenant)
    for quota in _covering(whose, wanted):
        held = _held(quota, whose.claim_uid)
        if amount := min(wanted[quota.resource], held):
            ResourceQuota.objects.filter(pk=quota.pk).update(
                used=F("used") - amount,
                excess=Greatest(F("excess") - amount, 0),
                updated_at=timezone.now(),
            )
            _enter(quota, LedgerEntry.Kind.REFUND, -amount, whose.claim_uid, whose.principal)


def lock(whose: Whose, *, amounts: Amounts) -> None:
    """Lock every quota that covers these resources, in primary-key order.

    For a transaction that charges some and refunds others: each pass is in order, the two together are not.
    """
    list(
        ResourceQuota.objects.select_for_update()
        .filter(Q(pool=whose.pool) | Q(pool=None), tenant=whose.tenant, resource__in=amounts)
        .order_by("pk")
        .values_list("pk")
    )


def _covering(whose: Whose, amounts: Amounts) -> list[ResourceQuota]:
    """The quotas that these amounts are charged to: the pool's and the overall one, in primary-key order."""
    return list(
        ResourceQuota.objects.filter(Q(pool=whose.pool) | Q(pool=None), tenant=whose.tenant, resource__in=amounts)
        .select_related("pool")
        .order_by("pk")
    )


def _take(quota: ResourceQuota, amount: int) -> bool:
    room = ResourceQuota.objects.filter(unlimited_or_room(amount), pk=quota.pk)
    return bool(room.update(used=F("used") + amount, updated_at=timezone.now()))


def _held(quota: ResourceQuota, claim_uid: uuid.UUID) -> int:
    entries = LedgerEntry.objects.filter(
        claim_uid=claim_uid, tenant_id=quota.tenant_id, pool=quota.pool, resource=quota.resource
    )
    return sum(entries.values_list("amount", flat=True))


def _enter(
    quota: ResourceQuota, kind: LedgerEntry.Kind, amount: int, claim_uid: uuid.UUID, principal: Principal
) -> None:
    now = ResourceQuota.objects.values_list("used", "hard").get(pk=quota.pk)
    LedgerEntry.objects.create(
        tenant_id=quota.tenant_id,
        pool_id=quota.pool_id,
        resource=quota.resource,
        kind=kind,
        amount=amount,
        used=now[0],
        hard=now[1],
        claim_uid=claim_uid,
        actor=principal.name,
    )
