"""Charges at the organisations above a tenant.

A charge takes from the quotas of all of them at once: one UPDATE whose WHERE clause is the check, backed by a CHECK
constraint. Order of locks: tenants, shares, quotas of organisations, quotas of tenants, each by key. The tenant comes
first because its lock fixes the organisations above it: to move a tenant or an organisation, or to create a quota of
one, takes the exclusive lock of every tenant below. Tenants without an organisation lock and write nothing here.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from django.db import connection
from django.db.models import Q, QuerySet
from django.db.models.expressions import RawSQL
from django.utils import timezone

from apps.quotas.models import Organisation, OrganisationQuota, Pool, Tenant
from apps.quotas.models.organisation import MOST_LEVELS
from apps.quotas.providers import claim_charges
from apps.quotas.services.refusals import QuotaExceeded, quota_exceeded
from gpucloud.locks import serialize_transaction

ABOVE = """
WITH RECURSIVE above AS (
    SELECT id, parent_id FROM quotas_organisation WHERE id = ANY(%s)
    UNION SELECT upper.id, upper.parent_id FROM quotas_organisation upper JOIN above ON upper.id = above.parent_id
) SELECT id FROM above
"""
# The condition is that of the constraint. An unlimited quota only counts.
TAKE = """
UPDATE quotas_organisationquota quota SET used = used + more.amount, updated_at = %s
FROM unnest(%s::bigint[], %s::bigint[]) AS more (id, amount)
WHERE quota.id = more.id AND (quota.hard IS NULL OR quota.used <= quota.hard - more.amount)
RETURNING quota.id
"""
# Never below zero: a server of the previous version charges no organisations, which must not block a release.
GIVE_BACK = """
UPDATE quotas_organisationquota quota
SET used = GREATEST(used - less.amount, 0), excess = GREATEST(excess - less.amount, 0), updated_at = %s
FROM unnest(%s::bigint[], %s::bigint[]) AS less (id, amount)
WHERE quota.id = less.id RETURNING quota.id
"""
Amounts = Mapping[str, int]


def serialize_tree() -> None:
    """Wait for other changes of the tree and of its set of quotas; before any lock of a row."""
    serialize_transaction("organisations")


def lock(
    organisation_ids: Iterable[int], *, pool: Pool | None = None, resources: Collection[str] | None = None
) -> list[OrganisationQuota]:
    """Lock the quotas of these organisations and of all above them, in key order, and return them.

    Only those that cover the pool and the resources, if given.
    """
    if not (ids := list(organisation_ids)):
        return []
    rows = _of_lineages(ids)
    if pool is not None:
        rows = rows.filter(Q(pool=pool) | Q(pool=None))
    if resources is not None:
        rows = rows.filter(resource__in=resources)
    rows = rows.select_for_update(no_key=True, of=("self",)).select_related("organisation", "pool")
    return list(rows.order_by("pk"))


def read(organisation_ids: Iterable[int]) -> QuerySet[OrganisationQuota]:
    """Return the quotas of these organisations and of all above them, in key order, without locks."""
    return _of_lineages(list(organisation_ids)).select_related("organisation", "pool").order_by("pk")


def _of_lineages(organisation_ids: list[int]) -> QuerySet[OrganisationQuota]:
    return OrganisationQuota.objects.filter(organisation__in=RawSQL(ABOVE, [organisation_ids]))  # noqa: S611 - a constant


def take(levels: Iterable[OrganisationQuota], wanted: Amounts) -> list[QuotaExceeded]:
    """Charge the amounts to these locked quotas; return a refusal for each without room: the caller rolls back."""
    amounts = {level.pk: wanted[level.resource] for level in levels if wanted.get(level.resource, 0) > 0}
    taken = {pk for (pk,) in _update(TAKE, amounts)} if amounts else set()
    return [quota_exceeded(level, amounts[level.pk]) for level in levels if level.pk in amounts.keys() - taken]


def give_back(levels: Iterable[OrganisationQuota], wanted: Amounts) -> None:
    """Refund the amounts to these locked quotas."""
    if amounts := {level.pk: wanted[level.resource] for level in levels if wanted.get(level.resource, 0) > 0}:
        _update(GIVE_BACK, amounts)


def _update(statement: str, amounts: Mapping[int, int]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, [timezone.now(), list(amounts), list(amounts.values())])
        return list(cursor.fetchall())


def shortages(levels: Iterable[OrganisationQuota], wanted: Amounts) -> list[QuotaExceeded]:
    """Return a refusal for each of these quotas that has no room for its amount."""
    return [
        quota_exceeded(level, amount)
        for level in levels
        if level.free is not None and (amount := wanted.get(level.resource, 0)) > level.free
    ]


def tenants_below(organisation: Organisation) -> QuerySet[Tenant]:
    """Return the tenants of the organisation and of all below it."""
    among = Q()
    for depth in range(MOST_LEVELS):
        among |= Q(**{"__".join(["organisation", *["parent"] * depth]): organisation})
    return Tenant.objects.filter(among)


def organisations_above(tenants: Iterable[Tenant]) -> dict[str, list[str]]:
    """Return the slugs of all organisations above each of these tenants, from the bottom, by the tenant's slug."""
    of_tenant = {tenant.slug: tenant.organisation_id for tenant in tenants if tenant.organisation_id is not None}
    rows = {row.pk: row for row in Organisation.objects.order_by()} if of_tenant else {}

    def climb(pk: int | None) -> Iterable[str]:
        while pk is not None:
            yield rows[pk].slug
            pk = rows[pk].parent_id

    return {slug: list(climb(pk)) for slug, pk in of_tenant.items()}


def levels_above(tenants: Iterable[Tenant]) -> dict[int, list[OrganisationQuota]]:
    """Return the quotas above each of these tenants, as they are now, by the tenant's key; the same rows for all."""
    of_tenant = {tenant.pk: tenant.organisation_id for tenant in tenants if tenant.organisation_id is not None}
    if not of_tenant:
        return {}
    parents = dict(Organisation.objects.order_by().values_list("pk", "parent_id"))
    rows: dict[int, list[OrganisationQuota]] = {}
    for quota in OrganisationQuota.objects.select_related("organisation", "pool").order_by("pk"):
        rows.setdefault(quota.organisation_id, []).append(quota)

    def climb(pk: int | None) -> Iterable[OrganisationQuota]:
        while pk is not None:
            yield from rows.get(pk, ())
            pk = parents[pk]

    return {tenant: list(climb(organisation)) for tenant, organisation in of_tenant.items()}


def amount_held(quota: OrganisationQuota, tenants: Iterable[Tenant]) -> int:
    """Return what the claims of these tenants charge of the quota's resource, under their exclusive locks."""
    charged = claim_charges.get().charged_by_claim
    return sum(sum(charged(tenant, quota.pool, quota.resource).values()) for tenant in tenants)


def recount(quotas: Iterable[OrganisationQuota]) -> list[tuple[OrganisationQuota, int]]:
    """Set the use of these locked quotas to what the tenants below hold; use above `hard` becomes `excess`.

    Return those that changed, with the use before. Call it under the exclusive locks of the tenants below.
    """
    changed = []
    for quota in quotas:
        before: Any = quota.used
        quota.used = amount_held(quota, tenants_below(quota.organisation))
        quota.excess = 0 if quota.hard is None else max(0, quota.used - quota.hard)
        quota.save(update_fields=["used", "excess", "updated_at"])
        if before != quota.used:
            changed.append((quota, before))
    return changed
