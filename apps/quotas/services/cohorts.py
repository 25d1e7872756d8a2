"""The shares through which tenants of a cohort lend one another what they do not use.

Order of locks: tenants, shares, quotas, each by key. The tenant comes first because its lock is what keeps its cohort,
and so the set of its shares, as it was read. Whoever writes a quota that has a share holds the share's lock, so what is
read under it of any quota of the share stays true until the commit.
"""

from collections.abc import Iterable

from django.db.models import F, Q
from django.db.models.functions import Greatest
from django.utils import timezone

from apps.quotas.models import CohortShare, ResourceQuota, Tenant
from apps.quotas.principals import Principal
from gpucloud.errors import Conflict


class CohortInUse(Conflict):
    """Tenants use one another's quotas, and after the change nobody would stand for it."""

    code = "cohort-in-use"
    title = "The cohort is lending or borrowing"


def share_for(quota: ResourceQuota, cohort: str | None) -> CohortShare | None:
    """The cohort's share of what the quota is of, made where it is missing; not yet locked."""
    if cohort is None:
        return None
    return CohortShare.objects.get_or_create(cohort=cohort, pool=quota.pool, resource=quota.resource)[0]


def lock(share_ids: Iterable[int | None]) -> None:
    """Lock these shares, in key order, under the lock of every tenant that is charged."""
    ids = {share_id for share_id in share_ids if share_id is not None}
    if ids:
        list(CohortShare.objects.select_for_update(no_key=True).filter(pk__in=ids).order_by("pk").values_list("pk"))


def take(quota: ResourceQuota, amount: int) -> bool:
    """Take from the share what a charge of `amount` needs of it, or return False. `quota` is as before the charge.

    While somebody is about to get back what they lent, nobody borrows more.
    """
    if quota.share_id is None:
        return True
    more = quota.taken(quota.used + amount) - quota.taken()
    room = CohortShare.objects.filter(pk=quota.share_id, taken__lte=F("lendable") - more)
    if quota.hard is not None and quota.used + amount > quota.hard:
        room = room.filter(Q(reclaimed_until=None) | Q(reclaimed_until__lte=timezone.now()))
    return not more or bool(room.update(taken=F("taken") + more))


def give_back(quota: ResourceQuota, amount: int) -> None:
    """Give back to the share what a refund of `amount` frees of it. `quota` is as before the refund.

    Never below nothing: a server of the version before keeps no shares, and what it wrote must not hold up a release.
    """
    if quota.share_id is not None and (less := quota.taken() - quota.taken(quota.used - amount)):
        CohortShare.objects.filter(pk=quota.share_id).update(
            taken=Greatest(F("taken") - less, 0), excess=Greatest(F("excess") - less, 0)
        )


def recount(share_ids: Iterable[int | None], *, may_exceed: bool) -> None:
    """Add the locked shares up anew, after their quotas changed.

    What is taken above what is lent is then `excess`, which only falls; without `may_exceed` it must not grow.
    Raises CohortInUse.
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
    """Take the tenant's quotas out of its cohort's shares and into another's, under the tenant's own lock.

    Raises CohortInUse where it borrows, where others need what it lends, or where the new cohort has no room for it.
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
    """Tenants that borrow in the quota's share now, as far as the caller may know of them."""
    if quota.share_id is None:
        return []
    others = ResourceQuota.objects.visible_to(principal).filter(share=quota.share_id, borrowed__gt=0)
    return list(others.exclude(pk=quota.pk).order_by("tenant__slug").values_list("tenant__slug", flat=True))
