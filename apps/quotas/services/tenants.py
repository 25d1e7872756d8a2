"""Creation, change and removal of tenants and pools, and membership."""

from typing import Any

from django.db import transaction
from django.db.models import ProtectedError

from apps.quotas.models import Membership, Organisation, Pool, Role, SharingPolicy, Tenant, User
from apps.quotas.models.pool import LENDING_POLICIES, BackEnd, IdleRule
from apps.quotas.principals import ALL_SCOPES, RANK, Principal
from apps.quotas.providers import remote_permits
from apps.quotas.services import audit, cohorts, organisations
from apps.quotas.services.names import NameTaken, refuse_taken
from apps.quotas.services.organisation_quotas import serialize_tree
from gpucloud.api import etags
from gpucloud.errors import Conflict, Denied, Invalid


class InUse(Conflict, code="in-use", title="Still in use"):
    """Other objects still depend on it."""


class PartsMissing(Invalid, code="parts-missing", title="parts is missing"):
    """The policy divides each GPU, and the number of parts is missing."""


class ShrinkNeedsLending(Invalid, code="shrink-needs-lending", title="Nothing can be lent here"):
    """Under the pool's sharing policy no claim could use what an idle claim lends."""


class BackEndCannotSuspend(Invalid, code="back-end-cannot-suspend", title="The back end cannot suspend claims"):
    """Rotation and packing suspend or move claims, which the pool's back end cannot."""


@transaction.atomic
def create_tenant(
    *,
    principal: Principal,
    slug: str,
    name: str,
    weight: int = 1,
    cohort: str | None = None,
    organisation: Organisation | None = None,
    remote: bool = False,
) -> Tenant:
    """Create a tenant, which may hold nothing until it has a quota. Raises NameTaken, Conflict."""
    principal.require_operator()
    if organisation is not None:
        serialize_tree()
        organisations.require_there(organisation)
    facts: dict[str, Any] = {"slug": slug, "name": name, "weight": weight, "cohort": cohort, "remote": remote}
    with refuse_taken(lambda: NameTaken(f"There is a tenant {slug} already.", slug=slug)):
        tenant = Tenant.objects.create(**facts, organisation=organisation)
    audit.record(
        principal,
        "tenant.create",
        audit.Named("tenant", slug),
        tenant=tenant,
        after={**facts, "organisation": organisation and organisation.slug},
    )
    return tenant


@transaction.atomic
def change_tenant(*, principal: Principal, tenant: Tenant, versions: etags.Versions = None, **values: Any) -> Tenant:
    """Change the fields of a tenant but its slug. Raises PreconditionFailed, CohortInUse, OrganisationFull."""
    principal.require_operator()
    if "organisation" in values:
        serialize_tree()
    tenant = etags.lock(tenant, versions)
    before = {name: organisations.recorded(getattr(tenant, name)) for name in values}
    if "cohort" in values and values["cohort"] != tenant.cohort:
        cohorts.move(tenant, values["cohort"])
    if "organisation" in values and values["organisation"] != tenant.organisation:
        organisations.place_tenant(tenant, values["organisation"])
    tenant.change(**values)
    if "remote" in values and values["remote"] != before["remote"]:
        remote_permits.get().push(tenant)
    after = {name: organisations.recorded(value) for name, value in values.items()}
    audit.record(principal, "tenant.change", tenant, tenant=tenant, before=before, after=after)
    return tenant


@transaction.atomic
def delete_tenant(*, principal: Principal, tenant: Tenant, versions: etags.Versions = None) -> None:
    """Remove a tenant that never had a quota. Raises InUse: a ledger is kept."""
    principal.require_operator()
    tenant = etags.lock(tenant, versions)
    try:
        tenant.delete()
    except ProtectedError as error:
        raise InUse(
            f"Tenant {tenant.slug} has a history (quotas or claims) and is kept: set its quotas to 0.",
            slug=tenant.slug,
        ) from error
    audit.record(principal, "tenant.delete", tenant)


def require_parts(pool: Pool) -> None:
    """Require at least two parts if the policy divides each GPU. Raises PartsMissing."""
    if pool.sharing_policy == SharingPolicy.AVERAGE and pool.parts < 2:
        raise PartsMissing("`average` divides each GPU into `parts`: give it as well, from 2 to 16.", parts=pool.parts)


def require_lending(pool: Pool) -> None:
    """Require a policy that lends if idle claims are to lend. Raises ShrinkNeedsLending."""
    if pool.idle_rule == IdleRule.SHRINK and pool.backend != BackEnd.TURNS:
        raise ShrinkNeedsLending(
            f"idle_rule shrink lends what is idle, which only turns give back at once: set idle_rule to report or "
            f"release, or backend to turns instead of {pool.backend}.",
            backend=pool.backend,
        )
    if pool.idle_rule == IdleRule.SHRINK and pool.sharing_policy not in LENDING_POLICIES:
        raise ShrinkNeedsLending(
            f"idle_rule shrink lends what is idle, and {pool.sharing_policy} does not lend: set idle_rule to "
            "report or release, or sharing_policy to burst or preempt.",
            sharing_policy=pool.sharing_policy,
        )


def require_suspension(pool: Pool) -> None:
    """Refuse rotation and packing, which suspend claims, under MPS. Raises BackEndCannotSuspend."""
    asked = [name for name in ("oversubscribe", "pack_keep_percent") if getattr(pool, name) is not None]
    if asked and pool.backend == BackEnd.MPS:
        raise BackEndCannotSuspend(
            f"{' and '.join(asked)} suspend and move claims, and clients of MPS can be neither suspended nor moved: "
            f"set {' and '.join(asked)} to null, or backend to turns or native.",
            backend=pool.backend,
        )


@transaction.atomic
def create_pool(*, principal: Principal, name: str, **facts: Any) -> Pool:
    """Create an empty pool. Raises NameTaken, PartsMissing, ShrinkNeedsLending, BackEndCannotSuspend."""
    principal.require_operator()
    pool = Pool(name=name, **facts)
    require_parts(pool)
    require_lending(pool)
    require_suspension(pool)
    with refuse_taken(lambda: NameTaken(f"There is a pool {name} already.", name=name)):
        pool.save()
    audit.record(principal, "pool.create", audit.Named("pool", name), after={"name": name, **facts})
    return pool


class RoleBeyond(Denied, code="role-beyond", title="This token cannot give roles"):
    """The caller's token would grant more than it has."""


@transaction.atomic
def set_member(*, principal: Principal, tenant: Tenant, user: User, role: str) -> Membership:
    """Give a user a role in a tenant, or change it. Raises Denied."""
    principal.require_role(tenant, "admin")
    membership, created = Membership.objects.select_for_update().get_or_create(
        tenant=tenant, user=user, defaults={"role": role}
    )
    if created or RANK[Role(role)] > RANK[Role(membership.role)]:
        refuse_beyond(principal)
    before = None if created else {"role": membership.role}
    if membership.role != role:
        membership.role = role
        membership.save(update_fields=["role"])
    audit.record(
        principal,
        "member.set",
        audit.Named("member", f"{tenant.slug}/{user.get_username()}"),
        tenant=tenant,
        before=before,
        after={"role": role},
    )
    return membership


def refuse_beyond(principal: Principal) -> None:
    """Refuse to grant a role, which has every scope, no end and no networks, by a token that lacks these."""
    if principal.limited:
        raise RoleBeyond("A token with an end or with networks cannot give roles: they would outlive or escape it.")
    if lacking := sorted(ALL_SCOPES - principal.scopes):
        raise RoleBeyond(
            f"A role has scopes that this token lacks ({', '.join(lacking)}): it can take roles away, not give them.",
            scopes=lacking,
        )


@transaction.atomic
def remove_member(*, principal: Principal, membership: Membership) -> None:
    """Remove a user's role; repeatable. Raises Denied."""
    principal.require_role(membership.tenant, "admin")
    rows = Membership.objects.select_for_update(of=["self"]).select_related("tenant", "user")
    present = rows.filter(pk=membership.pk).first()
    if present is None:
        return
    audit.record(
        principal,
        "member.remove",
        audit.Named("member", f"{present.tenant.slug}/{present.user.get_username()}"),
        tenant=present.tenant,
        before={"role": present.role},
    )
    present.delete()
