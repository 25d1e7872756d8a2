"""Sign-in of an identity provider's users, with roles from their groups."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.utils.translation import gettext_noop

from apps.quotas.models import Identity, Role, Tenant, User
from apps.quotas.principals import RANK, Principal, of_user
from apps.quotas.services import accounts, audit, tenants
from gpucloud.errors import Denied

logger = logging.getLogger(__name__)

SUBJECT_LENGTH = 255  # from the specification
PROVIDER = Principal(name="oidc", is_operator=True)


class SignOnRefused(Denied, code="sign-on-refused", title="You cannot sign in"):
    """The identity provider authenticated the user, but access is refused."""


@dataclass(frozen=True, slots=True)
class GroupRole:
    """Role of members of a provider's group: in a tenant, or (tenant None) as operators."""

    group: str
    tenant: str | None
    role: str


def admit(*, issuer: str, claims: Mapping[str, Any]) -> User:
    """Return the user of verified claims, created at the first sign-in, with the roles of their groups.

    Users are recognised by issuer and subject, never by name. Raises SignOnRefused.
    """
    subject = claims["sub"]
    if not isinstance(subject, str) or not 0 < len(subject) <= SUBJECT_LENGTH or not subject.isprintable():
        raise SignOnRefused(gettext_noop("The identity provider did not say who you are (claim sub)."))
    try:
        with transaction.atomic():
            user = _known(issuer, subject) or _first_time(issuer, subject, claims)
            _follow_groups(user, claims.get(settings.OIDC_GROUPS_CLAIM))
    except IntegrityError as error:
        raise SignOnRefused(
            gettext_noop("Somebody signed in under this name at the same moment: please try again.")
        ) from error
    if not user.is_active:
        raise SignOnRefused(gettext_noop("This account is switched off: ask an operator."))
    return user


def record_sign_in(*, user: User, method: str, source_ip: str | None) -> None:
    """Record a sign-in and its method."""
    audit.record(of_user(user, source_ip=source_ip), "person.sign_in", user, after={"method": method})


def _known(issuer: str, subject: str) -> User | None:
    identity = Identity.objects.select_related("user").filter(issuer=issuer, subject=subject).first()
    return User.objects.select_for_update().get(pk=identity.user_id) if identity else None


def _first_time(issuer: str, subject: str, claims: Mapping[str, Any]) -> User:
    name = claims.get(settings.OIDC_USERNAME_CLAIM)
    if not isinstance(name, str) or not name:
        raise SignOnRefused(f"The identity provider did not say your name (claim {settings.OIDC_USERNAME_CLAIM}).")
    user = User.objects.select_for_update().filter(username=name).first()
    if user is None:
        user = User(username=name)
        user.set_unusable_password()
        try:
            user.full_clean()
        except ValidationError as error:
            raise SignOnRefused(f"The name {name} cannot be used here: {'; '.join(error.messages)}") from error
        user.save()
    elif user.has_usable_password() or user.identities.exists() or not _same_address(user, claims):
        # The provider assigns names freely: a name must not open another user's account.
        raise SignOnRefused(f"There is a {name} already who signs in otherwise: ask an operator.")
    Identity.objects.create(user=user, issuer=issuer, subject=subject)
    audit.record(PROVIDER, "person.link", audit.Named("person", name), after={"issuer": issuer, "subject": subject})
    return user


def _same_address(user: User, claims: Mapping[str, Any]) -> bool:
    """Return True if the provider verified this account's own mail address; an empty address never matches."""
    address = claims.get("email")
    proved = claims.get("email_verified") is True and isinstance(address, str)
    return proved and bool(user.email) and str(address).casefold() == user.email.casefold()


def _follow_groups(user: User, groups: object) -> None:
    """Grant and revoke the roles that groups decide; other roles stay."""
    rules = [GroupRole(*rule) for rule in settings.OIDC_GROUP_ROLES]
    held = {group for group in groups if isinstance(group, str)} if isinstance(groups, list) else set()
    mine = [rule for rule in rules if rule.group in held]
    if any(rule.tenant is None for rule in rules):
        _set_operator(user, any(rule.tenant is None for rule in mine))
    for slug in {rule.tenant for rule in rules if rule.tenant is not None}:
        tenant = Tenant.objects.filter(slug=slug).first()
        if tenant is None:
            logger.warning("OIDC_GROUP_ROLES names the tenant %s, which does not exist", slug)
            continue
        _set_role(user, tenant, [rule.role for rule in mine if rule.tenant == slug])


def _set_operator(user: User, is_operator: bool) -> None:
    try:
        accounts.set_operator(principal=PROVIDER, user=user, operator=is_operator)
    except accounts.LastOperator:
        logger.warning("%s stays an operator: the groups leave no other", user.get_username())
    user.refresh_from_db(fields=["is_operator"])


def _set_role(user: User, tenant: Tenant, roles: Iterable[str]) -> None:
    wanted = max(roles, key=lambda role: RANK[Role(role)], default=None)
    membership = user.memberships.filter(tenant=tenant).select_related("tenant", "user").first()
    if wanted is None and membership is not None:
        tenants.remove_member(principal=PROVIDER, membership=membership)
    elif wanted is not None and (membership is None or membership.role != wanted):
        tenants.set_member(principal=PROVIDER, tenant=tenant, user=user, role=wanted)
