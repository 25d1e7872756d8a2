"""Who is asking, and what that lets them do."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from django.utils.translation import gettext

from apps.quotas.models import Role, Tenant, Token, User
from gpucloud.errors import Denied

SCOPES = (
    "tenants:read",
    "tenants:write",
    "quotas:read",
    "quotas:write",
    "nodes:read",
    "nodes:write",
    "claims:read",
    "claims:write",
    "utilization:read",
    "tokens:read",
    "tokens:write",
    "audit:read",
    "webhooks:read",
    "webhooks:write",
)
ALL_SCOPES = frozenset(SCOPES)
RANK = {Role.VIEWER: 0, Role.MEMBER: 1, Role.ADMIN: 2}


class ScopeMissing(Denied):
    """The token was made without this scope."""

    code = "scope-missing"
    title = "The token lacks a scope"


class RoleMissing(Denied):
    """The caller's role does not reach this far."""

    code = "role-missing"
    title = "Your role does not allow this"


@dataclass(frozen=True, slots=True)
class Principal:
    """A signed-in person, a token, or the system itself.

    `roles` maps the primary keys of tenants to roles; an operator needs none.
    """

    name: str
    is_operator: bool = False
    user_id: int | None = None
    roles: Mapping[int, str] = field(default_factory=dict)
    scopes: frozenset[str] = ALL_SCOPES
    source_ip: str | None = None
    # A token that is valid for a time or from some networks only.
    limited: bool = False
    # What Django and DRF ask of a request's user.
    is_authenticated: bool = True
    is_anonymous: bool = False
    is_active: bool = True

    @property
    def pk(self) -> str:
        """A stable name, for throttles and caches."""
        return self.name

    def with_role(self, least: str) -> list[int]:
        """Primary keys of the tenants in which the caller has at least this role."""
        return [tenant for tenant, role in self.roles.items() if RANK[Role(role)] >= RANK[Role(least)]]

    @property
    def may_claim(self) -> bool:
        """Whether there is a tenant for which the caller may ask for GPUs."""
        return self.is_operator or bool(self.with_role(Role.MEMBER))

    @property
    def may_administer(self) -> bool:
        """Whether there is a tenant whose quotas the caller may ask to raise, and whose tokens they may make."""
        return self.is_operator or bool(self.with_role(Role.ADMIN))

    def sees(self, tenant: Tenant) -> bool:
        """Whether what belongs to the tenant exists for the caller: `visible_to` of one object that is at hand."""
        return self.is_operator or tenant.pk in self.roles

    def require_scope(self, scope: str) -> None:
        """Raises ScopeMissing."""
        if scope not in self.scopes:
            raise ScopeMissing(f"This token needs the scope {scope}.", scope=scope)

    def require_operator(self) -> None:
        """Raises RoleMissing unless the caller runs the platform."""
        if not self.is_operator:
            raise RoleMissing(gettext("Only an operator may do this."), role="operator")

    def require_role(self, tenant: Tenant, least: str) -> None:
        """Raises RoleMissing. Say first, by `visible_to`, that a foreign tenant does not exist."""
        if not self.is_operator and tenant.pk not in self.with_role(least):
            said = gettext("This needs the role {0} in tenant {1}.")
            raise RoleMissing(said.format(str(Role(least).label).lower(), tenant.slug), role=str(least))


SYSTEM = Principal(name="system", is_operator=True)


def of_user(user: User, *, source_ip: str | None = None) -> Principal:
    """The principal of a signed-in person: one query, for the roles."""
    return Principal(
        name=f"user:{user.get_username()}",
        is_operator=user.is_operator,
        user_id=user.pk,
        roles={} if user.is_operator else dict(user.memberships.values_list("tenant_id", "role")),
        source_ip=source_ip,
    )


def of_token(token: Token, *, source_ip: str | None = None) -> Principal:
    """The principal of a token: bound to its tenant, or the platform's."""
    return Principal(
        name=f"token:gpc_{token.key}",
        is_operator=token.tenant_id is None,
        user_id=token.user_id,
        roles={} if token.tenant_id is None else {token.tenant_id: token.role},
        scopes=frozenset(token.scopes),
        source_ip=source_ip,
        limited=bool(token.expires_at or token.cidrs),
    )
