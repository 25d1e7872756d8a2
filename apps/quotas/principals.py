"""Principals: callers with their roles and scopes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

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
    "users:read",
    "users:write",
)
ALL_SCOPES = frozenset(SCOPES)
# Stands between a person and their token in the columns that say who made something.
VIA = " via token "
# Length of the columns that say who made or changed something.
NAME_LENGTH = 200
RANK = {Role.VIEWER: 0, Role.MEMBER: 1, Role.ADMIN: 2}


class ScopeMissing(Denied, code="scope-missing", title="The token lacks a scope"):
    """The token lacks this scope."""


class RoleMissing(Denied, code="role-missing", title="Your role does not allow this"):
    """The caller's role does not allow this."""


@dataclass(frozen=True, slots=True)
class Principal:
    """A signed-in user, a token, or the system itself.

    `roles` maps the primary keys of tenants to roles; an operator needs none.
    """

    name: str
    is_operator: bool = False
    user_id: int | None = None
    roles: Mapping[int, str] = field(default_factory=dict)
    scopes: frozenset[str] = ALL_SCOPES
    source_ip: str | None = None
    # True if it acts with all rights of the user `user_id`: a session, a personal token, an operator's platform token.
    own_rights: bool = False
    # The token's key, for the audit log; empty for a session.
    token_key: str = ""
    # True for a token that expires or is bound to networks.
    limited: bool = False
    # Attributes that Django and DRF read from a request's user.
    is_authenticated: bool = True
    is_anonymous: bool = False
    is_active: bool = True

    @property
    def pk(self) -> str:
        """Stable name of the credential, for throttles and stored answers."""
        return f"token:gpc_{self.token_key}" if self.token_key else self.name

    @property
    def actor(self) -> str:
        """Name in the audit log, with the token's key: names of tokens are not unique."""
        if not self.token_key or self.name == self.pk:
            return self.name
        key = f" (gpc_{self.token_key})"
        return shorten(self.name, NAME_LENGTH - len(key)) + key

    def with_role(self, least: str) -> list[int]:
        """Return the primary keys of the tenants in which the caller has at least this role."""
        return [tenant for tenant, role in self.roles.items() if RANK[Role(role)] >= RANK[Role(least)]]

    @property
    def may_claim(self) -> bool:
        """True if the caller may create claims in some tenant."""
        return self.is_operator or bool(self.with_role(Role.MEMBER))

    @property
    def may_administer(self) -> bool:
        """True if the caller may request quotas and create tokens in some tenant."""
        return self.is_operator or bool(self.with_role(Role.ADMIN))

    def sees(self, tenant: Tenant) -> bool:
        """Return True if the tenant's objects exist for the caller, like `visible_to` for one object."""
        return self.is_operator or tenant.pk in self.roles

    def require_scope(self, scope: str) -> None:
        """Require the scope. Raises ScopeMissing."""
        if scope not in self.scopes:
            raise ScopeMissing(f"This token needs the scope {scope}.", scope=scope)

    def require_operator(self) -> None:
        """Require an operator. Raises RoleMissing."""
        if not self.is_operator:
            raise RoleMissing(gettext("Only an operator may do this."), role="operator")

    def require_role(self, tenant: Tenant, least: str) -> None:
        """Require at least this role in the tenant. Raises RoleMissing.

        Filter by `visible_to` first, so that foreign tenants do not exist.
        """
        if not self.is_operator and tenant.pk not in self.with_role(least):
            said = gettext("This needs the role {0} in tenant {1}.")
            raise RoleMissing(said.format(str(Role(least).label).lower(), tenant.slug), role=str(least))


SYSTEM = Principal(name="system", is_operator=True)


def of_user(user: User, *, source_ip: str | None = None) -> Principal:
    """Return the principal of a signed-in user; one query, for the roles."""
    return Principal(
        name=f"user:{user.get_username()}",
        is_operator=user.is_operator,
        user_id=user.pk,
        own_rights=True,
        roles={} if user.is_operator else dict(user.memberships.values_list("tenant_id", "role")),
        source_ip=source_ip,
    )


def of_token(token: Token, *, source_ip: str | None = None) -> Principal:
    """Return the principal of a token: bound to its tenant, for the whole platform, or with its owner's rights."""
    if token.personal and token.user is not None:
        return replace(
            of_user(token.user, source_ip=source_ip),
            name=_name_of_token(token),
            token_key=token.key,
            scopes=frozenset(token.scopes),
            limited=bool(token.expires_at or token.cidrs),
        )
    return Principal(
        name=_name_of_token(token),
        is_operator=token.tenant_id is None,
        user_id=token.user_id,
        own_rights=token.tenant_id is None and token.user_id is not None,
        token_key=token.key,
        roles={} if token.tenant_id is None else {token.tenant_id: token.role},
        scopes=frozenset(token.scopes),
        source_ip=source_ip,
        limited=bool(token.expires_at or token.cidrs),
    )


def _name_of_token(token: Token) -> str:
    """Return the person and the token's name, or the key of a token without a person."""
    if token.user is None:
        return f"token:gpc_{token.key}"
    return shorten(f"user:{token.user.get_username()}{VIA}{token.name}", NAME_LENGTH)


def shorten(text: str, length: int) -> str:
    """Return the text, cut to this length."""
    return text if len(text) <= length else text[: length - 1] + "…"
