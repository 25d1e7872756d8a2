"""Limits of members within a tenant's quota. A member's tokens count to the member.

A member's holdings are not a counter but the sum of the member's claims, read under the lock of the membership: two
claims of one member cannot both take the last gigabyte, and there is no second number that could differ.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from django.db import transaction
from django.db.models import Q, QuerySet

from apps.quotas.models import MemberLimit, Membership, Tenant, User
from apps.quotas.principals import Principal
from apps.quotas.providers import claim_charges
from apps.quotas.services import audit
from apps.quotas.services.names import NameTaken, refuse_taken
from gpucloud.api import etags
from gpucloud.fastpath.compiled_queries import compiled_query


def lock(tenant: Tenant, user_id: int | None, resources: Mapping[str, int]) -> dict[str, int]:
    """Return the member's limits by resource, and lock the membership if there are any.

    Empty for principals that are not members: operators, and tokens that operators created.
    """
    limits = _bounds(tenant, user_id, resources)
    if not limits:
        return {}
    member = Membership.objects.select_for_update(no_key=True).filter(tenant=tenant, user=user_id)
    return limits if list(member.values_list("pk")) else {}


def has_any(tenant: Tenant, user_id: int | None, resources: Iterable[str]) -> bool:
    """Return True if there are limits of these resources for the user in the tenant, whether a member or not."""
    return bool(_bounds(tenant, user_id, resources))


def limits_of(tenant: Tenant, user_id: int | None) -> dict[str, int]:
    """Return the member's present limits of every resource, without a lock."""
    limits = _bounds(tenant, user_id)
    return limits if limits and Membership.objects.filter(tenant=tenant, user=user_id).exists() else {}


def _bounds(tenant: Tenant, user_id: int | None, resources: Iterable[str] | None = None) -> dict[str, int]:
    """Return the limits of these resources, or of all."""
    if user_id is None:
        return {}
    rows = sorted(_limits_of(tenant.pk, user_id), key=lambda row: row.user_id is not None)
    of = {row.resource: row.hard for row in rows}
    named = of if resources is None else resources
    return {resource: hard for resource in named if (hard := of.get(resource)) is not None}


@compiled_query
def _limits_of(tenant: Any, user: Any) -> QuerySet[MemberLimit]:
    return MemberLimit.objects.filter(Q(user=user) | Q(user=None), tenant=tenant)


def amounts_held(tenant: Tenant, user_id: int) -> Counter[str]:
    """Return the sum of the member's claims, by resource."""
    return claim_charges.get().charged_by_user(tenant, user_id)


@transaction.atomic
def create_limit(
    *, principal: Principal, tenant: Tenant, user: User | None, resource: str, hard: int | None
) -> MemberLimit:
    """Limit one member, or every member without a limit. Present holdings stay. Raises NameTaken, Denied."""
    principal.require_role(tenant, "admin")

    def describe() -> NameTaken:
        taken = MemberLimit.objects.get(tenant=tenant, user=user, resource=resource)
        return NameTaken(
            f"{user or 'Each member'} already has a limit of {resource} in {tenant.slug}: change limit {taken.pk}.",
            member_limit=taken.pk,
        )

    with refuse_taken(describe):
        row = MemberLimit.objects.create(tenant=tenant, user=user, resource=resource, hard=hard)
    _note(row, principal=principal, action="member-limit.create", before=None)
    return row


@transaction.atomic
def change_limit(
    *, principal: Principal, row: MemberLimit, hard: int | None, versions: etags.Versions = None
) -> MemberLimit:
    """Set `hard`. Below present holdings nothing is taken away or newly granted. Raises PreconditionFailed."""
    row = _lock_row(principal, row, versions)
    before = {"hard": row.hard}
    row.change(hard=hard)
    _note(row, principal=principal, action="member-limit.set", before=before)
    return row


@transaction.atomic
def delete_limit(*, principal: Principal, row: MemberLimit, versions: etags.Versions = None) -> None:
    """Remove the limit. Raises PreconditionFailed."""
    row = _lock_row(principal, row, versions)
    _note(row, principal=principal, action="member-limit.delete", before={"hard": row.hard})
    row.delete()


def _lock_row(principal: Principal, row: MemberLimit, versions: etags.Versions) -> MemberLimit:
    principal.require_role(row.tenant, "admin")
    return etags.lock(row, versions, "tenant", "user")


def _note(row: MemberLimit, *, principal: Principal, action: str, before: dict[str, Any] | None) -> None:
    member = row.user and row.user.get_username()
    deleted = action.endswith("delete")
    audit.record(
        principal,
        action,
        row,
        before=before,
        after=None if deleted else {"member": member, "resource": row.resource, "hard": row.hard},
    )
