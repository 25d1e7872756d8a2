"""Shares through which the tenants of a cohort lend one another idle quota.

Order of locks: tenants, shares, quotas, each by key. The tenant comes first because its lock fixes its cohort, and so
the set of its shares. A writer of a quota with a share holds the share's lock, so anything read under it about the
share's quotas stays true until the commit.
"""

from collections.abc import Iterable

from django.db.models import F, Q
from django.db.models.functions import Greatest
from django.utils import timezone

from apps.quotas.models import CohortShare, ResourceQuota, Tenant
from apps.quotas.principals import Principal
from gpucloud.errors import Conflict


class CohortInUse(Conflict, code="cohort-in-use", title="The cohort is lending or borrowing"):
    """Tenants use one another's quotas, and the change would leave that use without cover."""


def share_for(quota: ResourceQuota, cohort: str | None) -> CohortShare | None:
    """Return the cohort's share for the quota's pool and resource, created if missing; not locked."""
    if cohort is None:
        return None
    return CohortShare.objects.get_or_create(cohort=cohort, pool=quota.pool, resource=quota.resource)[0]


def lock(share_ids: Iterable[int | None]) -> None:
    """Lock these shares, in key order, under the lock of every charged tenant."""
    ids = {share_id for share_id in share_ids if share_id is not None}
    if ids:
        list(CohortShare.objects.select_for_update(no_key=True).filter(pk__in=ids).order_by("pk").values_list("pk"))


def take(quota: ResourceQuota, amount: int) -> bool:
    """Take from the share what a charge of `amount` needs, or return False. `quota` is as before the charge.

    While a tenant reclaims what it lent, borrowing does not grow.
    """
    if quota.share_id is None:
        return True
    more = quota.taken(quota.used + amount) - quota.taken()
    room = CohortShare.objects.filter(pk=quota.share_id, taken__lte=F("lendable") - more)
    if quota.hard is not None and quota.used + amount > quota.hard:
        room = room.filter(Q(reclaimed_until=None) | Q(reclaimed_until__lte=timezone.now()))
    return not more or bool(room.update(taken=F("taken") + more))


def give_back(quota: ResourceQuota, amount: int) -> None:
    """Return to the share what a refund of `amount` frees. `quota` is as before the refund.

    Never below zero: a server of the previous version writes no shares, which must not block a release.
    """
    if quota.share_id is not None and (less := quota.taken() - quota.taken(quota.used - amount)):
        CohortShare.objects.filter(pk=quota.share_id).update(
            taken=Greatest(F("taken") - less, 0), excess=Greatest(F("excess") - less, 0)
        )


def recount(share_ids: Iterable[int | None], *, may_exceed: bool) -> None:
    """Recompute the locked shares after their quotas changed. Raises CohortInUse.

    Use above the lendable amount becomes `excess`, which only falls; without `may_exceed` it must not grow.
    """
    for share in CohortShare.objects.filter(pk__in=[pk for pk in share_ids if pk is not None]).order_by("pk"):
        quotas = list(share.quotas.all())
        lendable = sum(quota.lendable for quota in quotas)
        taken = sum(quota.taken() for quota in quotas)
        excess = max(0, taken - lendable)
        if excess > share.excess and not may_exceed:
            raise CohortInUse(
                f"{taken} of {share.resource} would be taken of {lendable} that cohort {share.cohort} lends: "
                f"release claims first, or raise a quota by {excess - share.excess}.",
                cohort=share.cohort,
                resource=share.resource,
                pool=share.pool.name if share.pool else None,
                lendable=lendable,
                taken=taken,
            )
        CohortShare.objects.filter(pk=share.pk).update(lendable=lendable, taken=taken, excess=excess)


def move(tenant: Tenant, cohort: str | None) -> None:
    """Move the tenant's quotas from its cohort's shares into another's, under the tenant's lock.

    Raises CohortInUse if it borrows, if others need what it lends, or if the new cohort has no room for it.
    """
    quotas = list(tenant.quotas.select_related("pool").order_by("pool_id", "resource"))
    wanted = {quota.pk: share_for(quota, cohort) for quota in quotas}
    concerned = {quota.share_id for quota in quotas} | {share.pk for share in wanted.values() if share}
    lock(concerned)
    for quota in tenant.quotas.select_for_update().order_by("pk"):
        if quota.share_id is not None and quota.borrowed:
            raise CohortInUse(
                f"{tenant.slug} has borrowed {quota.borrowed} of {quota.resource}: release claims first.",
                cohort=tenant.cohort,
                resource=quota.resource,
                borrowed=quota.borrowed,
            )
        quota.share = wanted[quota.pk]
        quota.excess = 0 if quota.most is None else max(0, quota.used - quota.most)
        quota.save(update_fields=["share", "excess"])
    recount(concerned, may_exceed=False)


def borrowers(quota: ResourceQuota, *, principal: Principal) -> list[str]:
    """Return the tenants that borrow from the quota's share now, as far as the caller may see them."""
    if quota.share_id is None:
        return []
    others = ResourceQuota.objects.visible_to(principal).filter(share=quota.share_id, borrowed__gt=0)
    return list(others.exclude(pk=quota.pk).order_by("tenant__slug").values_list("tenant__slug", flat=True))
