"""Creation, lookup and revocation of API tokens."""

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from apps.quotas.models import Membership, Role, Tenant, Token, User
from apps.quotas.principals import RANK, SCOPES, Principal, RoleMissing, ScopeMissing
from apps.quotas.services import audit
from gpucloud.api import etags
from gpucloud.errors import Conflict, Denied
from gpucloud.fastpath.compiled_queries import compiled_query

PREFIX = "gpc_"
# Resolution of `last_used_at`, which shows unused tokens; a write for every request would show no more.
LAST_USED_RESOLUTION = timedelta(minutes=1)


class TokenEnded(Conflict, code="token-ended", title="The token has ended"):
    """The token is revoked or expired."""


class PersonMissing(Denied, code="person-missing", title="This needs a person"):
    """The caller's token does not have a person's own rights."""


class TokenLimited(Denied, code="token-limited", title="This token cannot make tokens"):
    """The caller's token cannot create tokens."""


def keyed_digest(secret: str, *, key: str | None = None) -> str:
    """Return the stored digest of a secret: without SECRET_KEY a stolen table is useless."""
    return hmac.new((key or settings.SECRET_KEY).encode(), b"token:" + secret.encode(), hashlib.sha256).hexdigest()


def keyed_digests(secret: str) -> list[str]:
    """Return the possible digests of a secret: under the present key first, then under earlier ones."""
    return [keyed_digest(secret, key=key) for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)]


def is_digest_of(kept: str, secret: str) -> bool:
    """Return True if this is the secret's digest, under the present or an earlier key; in constant time."""
    return any(hmac.compare_digest(kept, digest) for digest in keyed_digests(secret))


@transaction.atomic
def create(
    *,
    principal: Principal,
    name: str,
    tenant: Tenant | None,
    role: str = Role.MEMBER,
    scopes: Iterable[str] = SCOPES,
    cidrs: Iterable[str] = (),
    expires_at: datetime | None = None,
    user: User | None = None,
) -> tuple[Token, str]:
    """Create a token and its text, which is shown once. Refuses more rights than the caller's. Raises Denied."""
    if tenant is None:
        principal.require_operator()
    else:
        principal.require_role(tenant, Role.ADMIN)
    rights = {"scopes": list(scopes), "cidrs": list(cidrs), "expires_at": expires_at}
    return _issue(principal, name=name, tenant=tenant, role=role, user=user, **rights)


@transaction.atomic
def create_personal(
    *,
    principal: Principal,
    name: str,
    scopes: Iterable[str] = SCOPES,
    cidrs: Iterable[str] = (),
    expires_at: datetime | None = None,
) -> tuple[Token, str]:
    """Create a token with the caller's own rights, and its text, which is shown once. Raises Denied."""
    owner = require_own_rights(principal)
    rights = {"scopes": list(scopes), "cidrs": list(cidrs), "expires_at": expires_at}
    return _issue(principal, name=name, tenant=None, user=owner, personal=True, **rights)


def require_own_rights(principal: Principal) -> User:
    """Return the user whose rights the caller has. Raises PersonMissing for other tokens."""
    if not principal.own_rights or principal.user_id is None:
        raise PersonMissing("This belongs to a person: use a personal token, or sign in.")
    return User.objects.get(pk=principal.user_id)


def _issue(principal: Principal, **facts: Any) -> tuple[Token, str]:
    """Create the token, within the caller's scopes. Raises ScopeMissing, TokenLimited."""
    if beyond := set(facts["scopes"]) - principal.scopes:
        raise ScopeMissing(f"You cannot give scopes that you lack: {', '.join(sorted(beyond))}.", scope=min(beyond))
    if principal.limited:
        raise TokenLimited("A token with an end or with networks cannot make tokens: they would outlive or escape it.")
    key, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    token = Token.objects.create(key=key, digest=keyed_digest(secret), **facts)
    end = token.expires_at and token.expires_at.isoformat()
    after = {"name": token.name, "scopes": token.scopes, "role": token.role, "cidrs": token.cidrs, "expires_at": end}
    if token.personal:
        after |= {"role": None, "owner": facts["user"].get_username()}
    audit.record(principal, "token.create", audit.Named("token", key), tenant=token.tenant, after=after)
    return token, f"{PREFIX}{key}.{secret}"


@compiled_query
def _by_key(key: Any) -> QuerySet[Token]:
    return Token.objects.select_related("tenant", "user").filter(key=key)


@compiled_query
def _role_of(user: Any, tenant: Any) -> QuerySet[Membership, tuple[str]]:
    return Membership.objects.filter(user=user, tenant=tenant).values_list("role")


def find(text: str, *, source_ip: str | None) -> Token | None:
    """Return the valid token of this text, or None; every refusal looks alike."""
    key, dot, secret = text.removeprefix(PREFIX).partition(".")
    if not text.startswith(PREFIX) or not dot or not key.isalnum() or not secret.isascii():
        return None
    token = next(iter(_by_key(key)), None)
    if token is None or not is_digest_of(token.digest, secret):
        return None
    now = timezone.now()
    if token.revoked_at or (token.expires_at and token.expires_at <= now):
        return None
    if token.user is not None and not token.user.is_active:
        return None
    if token.tenant is None and token.user is not None and not (token.personal or token.user.is_operator):
        return None  # a platform token of a former operator
    if token.tenant is not None and not _still_in_tenant(token):
        return None
    if token.cidrs and not _inside(source_ip, token.cidrs):
        return None
    kept = keyed_digest(secret)
    if token.last_used_at is None or now - token.last_used_at > LAST_USED_RESOLUTION or token.digest != kept:
        # Store the digest under the present SECRET_KEY too: the token no longer needs the previous one.
        Token.objects.filter(pk=token.pk).update(last_used_at=now, digest=kept)
        if token.user_id is not None:
            User.objects.filter(pk=token.user_id).update(last_seen_at=now)
    return token


@transaction.atomic
def rotate(
    *,
    principal: Principal,
    token: Token,
    overlap_seconds: int,
    user: User | None = None,
    versions: etags.Versions = None,
) -> tuple[Token, str]:
    """Create a successor of this token, which ends after the overlap: time to deploy the new text.

    An earlier end of the token stays, for both. Raises Denied as `create` does, TokenEnded, PreconditionFailed.
    """
    token = etags.lock(token, versions, "tenant")
    now = timezone.now()
    if token.revoked_at or (token.expires_at and token.expires_at <= now):
        raise TokenEnded("This token has ended: make a new one.", key=token.key)
    rights: dict[str, Any] = {"scopes": token.scopes, "cidrs": token.cidrs, "expires_at": token.expires_at}
    if token.personal:
        # Its text would let an operator act as its owner.
        if not _owns(principal, token):
            raise PersonMissing("Only its owner replaces a personal token: revoke it.")
        made = create_personal(principal=principal, name=token.name, **rights)
    else:
        made = create(principal=principal, name=token.name, tenant=token.tenant, role=token.role, user=user, **rights)
    end = now + timedelta(seconds=overlap_seconds)
    before = {"expires_at": token.expires_at and token.expires_at.isoformat()}
    token.change(expires_at=min(end, token.expires_at or end))
    audit.record(
        principal,
        "token.rotate",
        token,
        before=before,
        after={"expires_at": token.expires_at.isoformat(), "replaced_by": made[0].key},  # type: ignore[union-attr]
    )
    return made


@transaction.atomic
def revoke(*, principal: Principal, token: Token, versions: etags.Versions = None) -> Token:
    """Revoke a token immediately; repeatable. Raises RoleMissing, PreconditionFailed."""
    token = etags.lock(token, versions)
    may = principal.is_operator or token.tenant_id in principal.with_role(Role.ADMIN) or _owns(principal, token)
    if not may:
        raise RoleMissing("Revoking this token needs the role admin in its tenant.", role=str(Role.ADMIN))
    if token.revoked_at is None:
        token.change(revoked_at=timezone.now())
        audit.record(principal, "token.revoke", token)
    return token


def _owns(principal: Principal, token: Token) -> bool:
    return token.personal and principal.own_rights and token.user_id == principal.user_id


def _still_in_tenant(token: Token) -> bool:
    """Return True if the creator may still act there; lower the token's role to the creator's."""
    if token.user is None or token.user.is_operator:
        return True
    roles = [role for (role,) in _role_of(token.user_id, token.tenant_id)]
    token.role = min([token.role, *roles], key=lambda name: RANK[Role(name)])
    return bool(roles)


def _inside(source_ip: str | None, cidrs: Iterable[str]) -> bool:
    if source_ip is None:
        return False
    address = ipaddress.ip_address(source_ip)
    return any(address in ipaddress.ip_network(cidr, strict=False) for cidr in cidrs)
