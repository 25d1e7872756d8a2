"""Creation, change, move and removal of organisations and of their quotas.

All of these, and moves of tenants, wait for one another (`serialize_tree`), so each sees the whole tree as it is. What
counts a use anew holds the exclusive lock of every tenant concerned, so no charge is missed.
"""

from collections.abc import Sequence
from typing import Any

from django.db import transaction

from apps.quotas.models import Organisation, OrganisationQuota, Pool, Tenant
from apps.quotas.models.organisation import MOST_LEVELS
from apps.quotas.principals import Principal
from apps.quotas.services import audit, charging, organisation_quotas
from apps.quotas.services.names import NameTaken, refuse_taken
from apps.quotas.services.organisation_quotas import serialize_tree, tenants_below
from apps.quotas.services.refusals import amount_in_words, resource_in_words
from gpucloud.api import etags
from gpucloud.errors import Conflict, Invalid


class OrganisationInUse(Conflict, code="organisation-in-use", title="The organisation is not empty"):
    """Tenants or other organisations belong to it."""


class WrongParent(Invalid, code="wrong-parent", title="It cannot be placed there"):
    """The organisation would be below itself, or too deep."""


class OrganisationFull(Conflict, code="organisation-full", title="The new organisation has no room"):
    """A quota above the new place has no room for the use of the moved tenants."""


@transaction.atomic
def create_organisation(
    *, principal: Principal, slug: str, name: str, parent: Organisation | None = None
) -> Organisation:
    """Create an organisation, or a part of one. Without quotas it limits nothing. Raises NameTaken, WrongParent."""
    principal.require_operator()
    serialize_tree()
    _refuse_depth(parent, levels=1)
    with refuse_taken(lambda: NameTaken(f"There is an organisation {slug} already.", slug=slug)):
        row = Organisation.objects.create(slug=slug, name=name, parent=parent)
    after = {"slug": slug, "name": name, "parent": parent and parent.slug}
    audit.record(principal, "organisation.create", row, after=after)
    return row


@transaction.atomic
def change_organisation(
    *, principal: Principal, organisation: Organisation, versions: etags.Versions = None, **values: Any
) -> Organisation:
    """Change the name, or move it below another parent with all that its tenants hold.

    Raises PreconditionFailed, WrongParent, and OrganisationFull if a quota above the new place has no room.
    """
    principal.require_operator()
    serialize_tree()
    row = etags.lock(organisation, versions)
    before = {name: recorded(getattr(row, name)) for name in values}
    parent = values.get("parent", row.parent)
    if parent != row.parent:
        _refuse_cycle(row, parent)
        _refuse_depth(parent, levels=_height(row))
        _move(list(tenants_below(row)), row.parent, parent)
    row.change(**values)
    after = {name: recorded(value) for name, value in values.items()}
    audit.record(principal, "organisation.change", row, before=before, after=after)
    return row


@transaction.atomic
def delete_organisation(*, principal: Principal, organisation: Organisation, versions: etags.Versions = None) -> None:
    """Remove an organisation to which nothing belongs, with its quotas. Raises OrganisationInUse."""
    principal.require_operator()
    serialize_tree()
    row = etags.lock(organisation, versions)
    inside = [*row.children.values_list("slug", flat=True)[:5], *row.tenants.values_list("slug", flat=True)[:5]]
    if inside:
        raise OrganisationInUse(
            f"{', '.join(inside)} belong to organisation {row.slug}: move them to another organisation first.",
            slug=row.slug,
            inside=inside,
        )
    audit.record(principal, "organisation.delete", row)
    row.delete()


def require_there(organisation: Organisation) -> None:
    """Require, under `serialize_tree`, that the organisation was not removed since it was read. Raises Conflict."""
    _lineage(organisation)


def place_tenant(tenant: Tenant, organisation: Organisation | None) -> None:
    """Move what a tenant holds to another organisation, or to none; the caller saves it, under `serialize_tree`.

    Raises OrganisationFull.
    """
    _move([tenant], tenant.organisation, organisation)


@transaction.atomic
def create_quota(
    *, principal: Principal, organisation: Organisation, pool: Pool | None, resource: str, hard: int | None
) -> OrganisationQuota:
    """Create a quota of an organisation; what its tenants hold already counts, and stays. Raises NameTaken."""
    principal.require_operator()
    serialize_tree()
    require_there(organisation)
    _lock_tenants(tenants_below(organisation))
    quota = OrganisationQuota(organisation=organisation, pool=pool, resource=resource, hard=hard)

    def describe() -> NameTaken:
        taken = OrganisationQuota.objects.get(organisation=organisation, pool=pool, resource=resource)
        return NameTaken(
            f"{organisation.slug} has a quota of {resource} for {pool or 'all pools'} already: change {taken.pk}.",
            quota=taken.pk,
        )

    with refuse_taken(describe):
        quota.save()
    organisation_quotas.recount([quota])
    audit.record(principal, "organisation-quota.create", quota, after=_facts(quota))
    return quota


@transaction.atomic
def change_quota(
    *, principal: Principal, quota: OrganisationQuota, versions: etags.Versions = None, **values: int | None
) -> OrganisationQuota:
    """Set `hard`. Below `used` nothing is taken away and nothing new is granted. Raises PreconditionFailed."""
    principal.require_operator()
    quota = etags.lock(quota, versions, "organisation", "pool")
    before = {"hard": quota.hard}
    hard = values["hard"]
    quota.change(hard=hard, excess=0 if hard is None else max(0, quota.used - hard))
    audit.record(principal, "organisation-quota.set", quota, before=before, after=_facts(quota))
    return quota


@transaction.atomic
def delete_quota(*, principal: Principal, quota: OrganisationQuota, versions: etags.Versions = None) -> None:
    """Remove a quota of an organisation: its tenants keep what they hold, and their own quotas."""
    principal.require_operator()
    serialize_tree()
    _lock_tenants(tenants_below(quota.organisation))
    quota = etags.lock(quota, versions, "organisation", "pool")
    audit.record(principal, "organisation-quota.delete", quota, before=_facts(quota))
    quota.delete()


def _lock_tenants(tenants: Any) -> list[Tenant]:
    """Lock these tenants exclusively, and return them: no charge of theirs is in progress."""
    rows = list(tenants)
    charging.lock_tenants(*rows, exclusive=True)
    return rows


def _move(tenants: Sequence[Tenant], old: Organisation | None, new: Organisation | None) -> None:
    """Move what these tenants hold from the organisations above their old place to those above the new one."""
    _lock_tenants(tenants)
    left, joined = _lineage(old), _lineage(new)
    levels = organisation_quotas.lock([row.pk for row in (old, new) if row is not None])
    short = []
    for quota in levels:
        if (quota.organisation_id in left) == (quota.organisation_id in joined):
            continue
        amount = organisation_quotas.amount_held(quota, tenants)
        if quota.organisation_id in left:
            organisation_quotas.give_back([quota], {quota.resource: amount})
        elif organisation_quotas.take([quota], {quota.resource: amount}):
            short.append((quota, amount))
    if short:
        raise OrganisationFull(
            "; ".join(_describe_shortage(quota, amount) for quota, amount in short)
            + ": release claims, or raise these quotas first.",
            short=[{**_facts(quota), "used": quota.used, "requested": amount} for quota, amount in short],
        )


def _describe_shortage(quota: OrganisationQuota, amount: int) -> str:
    where = f" in pool {quota.pool.name}" if quota.pool else ""
    wanted, free, hard = (amount_in_words(quota.resource, part or 0) for part in (amount, quota.free, quota.hard))
    return (
        f"{resource_in_words(quota.resource)} quota of organisation {quota.organisation.slug}{where}: "
        f"{wanted} would move there, {free} of {hard} available"
    )


def _lineage(organisation: Organisation | None) -> list[int]:
    """Return the keys of the organisation and of all above it as they are now, from the bottom. Raises Conflict."""
    parents = dict(Organisation.objects.order_by().values_list("pk", "parent_id"))
    if organisation is not None and organisation.pk not in parents:
        raise Conflict(f"Organisation {organisation.slug} was removed meanwhile: choose another one.")
    keys: list[int] = []
    key = None if organisation is None else organisation.pk
    while key is not None:
        keys.append(key)
        key = parents[key]
    return keys


def _height(organisation: Organisation) -> int:
    """Return the number of levels from the organisation down to its lowest part."""
    return 1 + max((_height(child) for child in organisation.children.all()), default=0)


def _refuse_depth(parent: Organisation | None, *, levels: int) -> None:
    if (depth := len(_lineage(parent)) + levels) > MOST_LEVELS:
        raise WrongParent(
            f"Organisations have at most {MOST_LEVELS} levels, and this would be {depth}: choose a higher parent.",
            most=MOST_LEVELS,
        )


def _refuse_cycle(organisation: Organisation, parent: Organisation | None) -> None:
    if organisation.pk in _lineage(parent):
        raise WrongParent(f"{parent} is {organisation} or below it: choose another parent.", parent=str(parent))


def recorded(value: Any) -> Any:
    """Return a value as the audit log has it."""
    return value.slug if isinstance(value, Organisation) else value


def _facts(quota: OrganisationQuota) -> dict[str, Any]:
    return {
        "organisation": quota.organisation.slug,
        "pool": quota.pool and quota.pool.name,
        "resource": quota.resource,
        "hard": quota.hard,
    }
