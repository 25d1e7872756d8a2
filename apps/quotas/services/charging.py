"""Charges and refunds of quotas: no tenant gets more than its quota.

The database decides the race. Each charge is one UPDATE whose WHERE clause is the check, so two requests cannot both
take the last gigabyte; a CHECK constraint backs it. The same statement writes the ledger's row. Rows are visited in
primary-key order, so two requests cannot deadlock. A charge is all or nothing: the first quota without room raises, and
the caller's transaction rolls back the rest. The row's version stays: it is the entity tag of the admins' settings, and
would be stale all the time in a busy tenant.

A tenant in a cohort takes from its quota and, above its kept part, from the cohort's share, in the same way
(`apps.quotas.services.cohorts`). A tenant in an organisation takes from the quotas of all organisations above it, too
(`apps.quotas.services.organisation_quotas`).
"""

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db import connection, transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Greatest
from django.utils import timezone

from apps.quotas.models import LedgerEntry, OrganisationQuota, Pool, ResourceQuota, Tenant
from apps.quotas.models.resource import ZERO_WITHOUT_ROW
from apps.quotas.principals import Principal
from apps.quotas.providers import claim_charges
from apps.quotas.services import cohorts, member_limits, organisation_quotas
from apps.quotas.services.refusals import MemberLimitExceeded, QuotaExceeded, quota_exceeded
from gpucloud.fastpath.compiled_queries import compiled_query

# The condition is that of `apps.quotas.models.quota.within`, which is the constraint too. An unlimited quota borrows
# nothing: GREATEST ignores null. Raw SQL, because every claim runs it: one statement instead of three.
TAKE = """
WITH taken AS (
    UPDATE quotas_resourcequota
    SET used = used + %(amount)s, borrowed = GREATEST(used + %(amount)s - hard, 0), updated_at = %(now)s
    WHERE id = %(quota)s AND (
        hard IS NULL
        OR used <= hard - %(amount)s
        OR (share_id IS NOT NULL AND (borrowing_limit IS NULL OR used <= hard + borrowing_limit - %(amount)s))
    )
    RETURNING tenant_id, pool_id, resource, used, hard
)
INSERT INTO quotas_ledgerentry (tenant_id, pool_id, resource, kind, amount, used, hard, claim_uid, actor, at)
SELECT tenant_id, pool_id, resource, 'charge', %(amount)s, used, hard, %(claim)s, %(actor)s, %(now)s FROM taken
"""

# The same for many claims, without borrowing: all of them or none, with an entry for each.
TAKE_MANY = """
WITH more AS (
    SELECT * FROM unnest(%(claims)s::uuid[], %(amounts)s::bigint[]) WITH ORDINALITY AS listed (claim, amount, place)
), taken AS (
    UPDATE quotas_resourcequota
    SET used = used + %(total)s, borrowed = GREATEST(used + %(total)s - hard, 0), updated_at = %(now)s
    WHERE id = %(quota)s AND (hard IS NULL OR used <= hard - %(total)s)
    RETURNING tenant_id, pool_id, resource, used - %(total)s AS before, hard
)
INSERT INTO quotas_ledgerentry (tenant_id, pool_id, resource, kind, amount, used, hard, claim_uid, actor, at)
SELECT tenant_id, pool_id, resource, 'charge', amount, before + sum(amount) OVER (ORDER BY place), hard, claim,
    %(actor)s, %(now)s
FROM taken CROSS JOIN more
"""

# A claim's amounts by resource, e.g. {"core_percent": 30, "memory_mib": 8192, "vgpus": 1, "gpus": 0}.
Amounts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ChargeContext:
    """Principal, tenant, pool and claim of a charge."""

    principal: Principal
    tenant: Tenant
    pool: Pool
    claim_uid: uuid.UUID
    # The member whose limits apply.
    user_id: int | None = None


@dataclass(frozen=True, slots=True)
class Ties:
    """Cohorts and organisations of locked tenants."""

    in_cohort: bool
    organisation_ids: set[int]


def lock_tenants(*tenants: Tenant, exclusive: bool = False) -> Ties:
    """Lock the tenants' sets of quotas: shared for charges and refunds, `exclusive` to create or remove one.

    Without the lock a claim in progress while a quota is created would be charged to the earlier quotas, never to the
    new one. Returns the tenants' ties, which stay while the lock is held.
    """
    # Django has no FOR KEY SHARE.
    strength = "UPDATE" if exclusive else "KEY SHARE"
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT cohort, organisation_id FROM quotas_tenant WHERE id = ANY(%s) ORDER BY id FOR {strength}",  # noqa: S608
            [[tenant.pk for tenant in tenants]],
        )
        rows = cursor.fetchall()
    return Ties(any(cohort is not None for cohort, _ in rows), {pk for _, pk in rows if pk is not None})


def lock(*tenants: Tenant) -> None:
    """Take all locks that charges and refunds of these tenants take before quotas."""
    ties = lock_tenants(*tenants)
    if ties.in_cohort:
        cohorts.lock(ResourceQuota.objects.filter(tenant__in=tenants).values_list("share_id", flat=True))
    organisation_quotas.lock(ties.organisation_ids)


def count_held(quota: ResourceQuota, *, principal: Principal) -> None:
    """Charge a new quota with what the tenant's claims hold already; an amount above the limit is `excess`."""
    total = 0
    for claim_uid, amount in claim_charges.get().charged_by_claim(quota.tenant, quota.pool, quota.resource).items():
        total += amount
        excess = 0 if quota.most is None else max(0, total - quota.most)
        ResourceQuota.objects.filter(pk=quota.pk).update(used=total, borrowed=_above_hard(total), excess=excess)
        enter(quota, LedgerEntry.Kind.CHARGE, amount, claim_uid, principal)
    quota.refresh_from_db()


@transaction.atomic
def charge(context: ChargeContext, *, amounts: Amounts) -> None:
    """Charge every amount to every quota that covers it, or charge nothing. Raises QuotaExceeded for all that is short.

    Charge each claim once in a transaction and save it before the next: member limits are checked against claims.
    """
    wanted = {resource: amount for resource, amount in amounts.items() if amount > 0}
    short: list[QuotaExceeded] = []
    if limits := member_limits.lock(context.tenant, context.user_id, wanted):
        short += member_shortages(context, wanted, limits)
    quotas, levels = _covering(context, wanted)
    short += missing_quotas(wanted, quotas, pool=context.pool)
    for quota in quotas:
        amount = wanted[quota.resource]
        if short:
            # Nothing is charged any more: only to name everything that is short.
            if _is_short(quota, amount):
                short.append(refusal_of(quota, amount, context.principal))
        elif not (_take(quota, amount, context) and cohorts.take(quota, amount)):
            short.append(refusal_of(quota, amount, context.principal))
    short += organisation_quotas.shortages(levels, wanted) if short else organisation_quotas.take(levels, wanted)
    if short:
        raise short[0].join(short[1:])


class _Short(Exception):
    """A quota has no room for all claims together."""


def charge_many(*, principal: Principal, tenant: Tenant, pool: Pool, amounts: Mapping[uuid.UUID, Amounts]) -> bool:
    """Charge many claims without a member, given by uid, in two statements and one for each quota.

    Return False and charge nothing if they must be charged one by one: some quota is short, missing, of a cohort or
    of an organisation.
    """
    resources = {resource: amount for each in amounts.values() for resource, amount in each.items() if amount > 0}
    try:
        with transaction.atomic():
            quotas, levels = _covering(ChargeContext(principal, tenant, pool, uuid.UUID(int=0)), resources)
            if missing_quotas(resources, quotas, pool=pool) or levels or any(quota.share_id for quota in quotas):
                return False
            for quota in quotas:
                mine = {uid: each[quota.resource] for uid, each in amounts.items() if each.get(quota.resource, 0) > 0}
                if not _take_many(quota, mine, principal):
                    raise _Short
    except _Short:
        return False
    return True


@transaction.atomic
def refund(context: ChargeContext, *, amounts: Amounts) -> None:
    """Refund what the claim's own ledger entries charged, at most `amounts`.

    A quota that was created after the claim was not charged by it, and gets no refund.
    """
    wanted = {resource: amount for resource, amount in amounts.items() if amount > 0}
    quotas, levels = _covering(context, wanted)
    organisation_quotas.give_back(levels, wanted)
    for quota in quotas:
        held = _charged_amount(quota, context.claim_uid)
        if amount := min(wanted[quota.resource], held):
            cohorts.give_back(quota, amount)
            ResourceQuota.objects.filter(pk=quota.pk).update(
                used=F("used") - amount,
                borrowed=_above_hard(F("used") - amount),
                excess=Greatest(F("excess") - amount, 0),
                updated_at=timezone.now(),
            )
            enter(quota, LedgerEntry.Kind.REFUND, -amount, context.claim_uid, context.principal)


def member_shortages(context: ChargeContext, wanted: Amounts, limits: Mapping[str, int]) -> list[QuotaExceeded]:
    """Return a refusal for each of the member's limits that has no room for the amount."""
    assert context.user_id is not None
    held = member_limits.amounts_held(context.tenant, context.user_id)
    return [
        MemberLimitExceeded(resource=resource, hard=hard, used=held[resource], requested=wanted[resource])
        for resource, hard in limits.items()
        if held[resource] + wanted[resource] > hard
    ]


def missing_quotas(wanted: Amounts, quotas: Iterable[ResourceQuota], *, pool: Pool) -> list[QuotaExceeded]:
    """Return a refusal for each resource of which a tenant without a quota may hold none."""
    covered = {quota.resource for quota in quotas}
    return [
        QuotaExceeded(resource=resource, pool=pool.name, hard=0, used=0, requested=wanted[resource])
        for resource in ZERO_WITHOUT_ROW
        if resource in wanted and resource not in covered
    ]


def lock_quotas(context: ChargeContext, *, amounts: Amounts) -> None:
    """Lock every quota that covers these resources, and all that charges lock before, in the order of locks.

    For a transaction that charges some and refunds others: each pass is in order, the two together are not.
    """
    member_limits.lock(context.tenant, context.user_id, amounts)
    lock(context.tenant)
    _lock_rows(_rows(context, amounts))


def lock_quotas_of(*tenants: Tenant, pool: Pool | None = None) -> None:
    """Lock all quotas of these tenants, or those that cover the pool, and all that charges lock before.

    For a transaction that charges or refunds more than one claim: each charge is in order, several in a row are not, as
    one claim may need a quota with a lower key than those before it. Members' limits are not locked.
    """
    lock(*tenants)
    rows = ResourceQuota.objects.filter(tenant__in=tenants)
    _lock_rows(rows if pool is None else rows.filter(Q(pool=pool) | Q(pool=None)))


def _lock_rows(quotas: QuerySet[ResourceQuota]) -> None:
    list(quotas.select_for_update(of=("self",), no_key=True).order_by("pk").values_list("pk"))


def _rows(context: ChargeContext, amounts: Amounts) -> QuerySet[ResourceQuota]:
    return ResourceQuota.objects.filter(
        Q(pool=context.pool) | Q(pool=None), tenant=context.tenant, resource__in=amounts
    )


def _covering(context: ChargeContext, amounts: Amounts) -> tuple[list[ResourceQuota], list[OrganisationQuota]]:
    """Return the quotas to charge, the pool's and the overall ones: the tenant's, and those of its organisations.

    Each in primary-key order. Quotas with a share, and those of organisations, are read under locks, so their numbers
    are current.
    """
    ties = lock_tenants(context.tenant)
    if ties.in_cohort:
        cohorts.lock(_rows(context, amounts).values_list("share_id", flat=True))
    levels = organisation_quotas.lock(ties.organisation_ids, pool=context.pool, resources=amounts)
    return [quota for quota in _quotas_of(context.tenant.pk, context.pool.pk) if quota.resource in amounts], levels


def own_quotas(context: ChargeContext, amounts: Amounts) -> list[ResourceQuota] | None:
    """Return the quotas to charge, not locked; None if some are shared with other tenants. Locks their set."""
    quotas, levels = _covering(context, amounts)
    return None if levels or any(quota.share_id is not None for quota in quotas) else quotas


@compiled_query
def _quotas_of(tenant: Any, pool: Any) -> QuerySet[ResourceQuota]:
    rows = ResourceQuota.objects.filter(Q(pool=pool) | Q(pool=None), tenant=tenant)
    return rows.select_related("pool", "share").order_by("pk")


def _take(quota: ResourceQuota, amount: int, context: ChargeContext) -> bool:
    """Charge the amount and write the ledger, or return False."""
    facts: dict[str, Any] = {
        "quota": quota.pk,
        "amount": amount,
        "claim": context.claim_uid,
        "actor": context.principal.name,
    }
    with connection.cursor() as cursor:
        cursor.execute(TAKE, {**facts, "now": timezone.now()})
        return bool(cursor.rowcount)


def _take_many(quota: ResourceQuota, amounts: Mapping[uuid.UUID, int], principal: Principal) -> bool:
    """Charge all amounts and write the ledger, or return False."""
    facts: dict[str, Any] = {"claims": list(amounts), "amounts": list(amounts.values()), "total": sum(amounts.values())}
    with connection.cursor() as cursor:
        cursor.execute(TAKE_MANY, {**facts, "quota": quota.pk, "actor": principal.name, "now": timezone.now()})
        return bool(cursor.rowcount == len(amounts))


def _above_hard(used: Any) -> Greatest:
    """Return the borrowed part of `used`; 0 for an unlimited quota, because GREATEST ignores null."""
    return Greatest(used - F("hard"), 0)


def _is_short(quota: ResourceQuota, requested: int) -> bool:
    if quota.share is None:
        quota.refresh_from_db(fields=["hard", "used"])
    return quota.free is not None and quota.free < requested


def refusal_of(quota: ResourceQuota, requested: int, principal: Principal) -> QuotaExceeded:
    """Return the refusal of an amount for which the quota has no room."""
    facts: dict[str, Any] = {}
    if quota.share is None:
        quota.refresh_from_db(fields=["hard", "used"])
    else:  # read under the share's lock, before this charge
        lent = quota.lent
        facts = {"cohort": quota.share.cohort, "free": quota.free, "borrowed": quota.borrowed, "lent": lent}
        facts["borrowers"] = cohorts.borrowers(quota, principal=principal) if lent else []
    return quota_exceeded(quota, requested, **facts)


def _charged_amount(quota: ResourceQuota, claim_uid: uuid.UUID) -> int:
    entries = LedgerEntry.objects.filter(
        claim_uid=claim_uid, tenant_id=quota.tenant_id, pool=quota.pool, resource=quota.resource
    )
    return sum(entries.values_list("amount", flat=True))


def enter(
    quota: ResourceQuota, kind: LedgerEntry.Kind, amount: int, claim_uid: uuid.UUID, principal: Principal
) -> None:
    """Write one change into the ledger, after it was made."""
    quota.refresh_from_db(fields=["used", "hard"])
    LedgerEntry.objects.create(
        tenant_id=quota.tenant_id,
        pool_id=quota.pool_id,
        resource=quota.resource,
        kind=kind,
        amount=amount,
        used=quota.used,
        hard=quota.hard,
        claim_uid=claim_uid,
        actor=principal.name,
    )
