"""Invitations: a link, shown once, with which a person creates their account."""

import logging
import secrets
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from django.core.exceptions import ValidationError
from django.db import transaction
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext_noop

from apps.quotas.models import Invitation, Role, Tenant, User
from apps.quotas.principals import SYSTEM, Principal, RoleMissing, of_user
from apps.quotas.services import accounts, audit, tenants
from apps.quotas.services.names import NameTaken, refuse_taken
from apps.quotas.services.tokens import keyed_digest, keyed_digests
from gpucloud.errors import Conflict, Missing

logger = logging.getLogger(__name__)

VALID_DAYS: Final = 7
MOST_DAYS: Final = 30
ENDED: Final = gettext_noop("It was used, revoked, or has expired. Ask for a new one.")


class InvitationEnded(Missing, code="invitation-ended", title="This link does not work"):
    """The link is wrong, used, revoked or expired; a stranger does not learn which."""


class InvitationUsed(Conflict, code="invitation-used", title="The invitation was accepted"):
    """An accepted invitation cannot be revoked."""


@transaction.atomic
def invite(
    *,
    principal: Principal,
    username: str = "",
    email: str = "",
    tenant: Tenant | None = None,
    role: str = Role.MEMBER,
    operator: bool = False,
    days: int = VALID_DAYS,
) -> tuple[Invitation, str]:
    """Create an invitation and its secret, which is stored nowhere. Raises Denied, NameTaken, LocalAccountsOff."""
    accounts.require_local_accounts()
    if tenant is None or operator:
        principal.require_operator()
    else:
        principal.require_role(tenant, Role.ADMIN)
    tenants.refuse_beyond(principal)
    if username and User.objects.filter(username=username).exists():
        raise NameTaken(f"There is a user {username} already: add them as a member.", username=username)
    secret = secrets.token_urlsafe(32)
    invitation = Invitation.objects.create(
        digest=_digest(secret),
        username=username,
        email=email,
        tenant=None if operator else tenant,
        role=role,
        operator=operator,
        created_by=principal.name,
        inviter_id=principal.user_id,
        expires_at=timezone.now() + timedelta(days=days),
    )
    audit.record(principal, "invitation.create", invitation, after=_facts(invitation))
    return invitation, secret


def path_of(secret: str) -> str:
    """Return the path of the invitation's page."""
    return reverse("accept-invitation", args=[secret])


@transaction.atomic
def revoke(*, principal: Principal, invitation: Invitation) -> Invitation:
    """Revoke an invitation; repeatable. Raises RoleMissing, InvitationUsed."""
    if not principal.is_operator and invitation.tenant_id not in principal.with_role(Role.ADMIN):
        raise RoleMissing("Revoking this invitation needs the role admin in its tenant.", role=str(Role.ADMIN))
    invitation = Invitation.objects.select_for_update(of=["self"]).select_related("tenant").get(pk=invitation.pk)
    if invitation.used_at:
        raise InvitationUsed("The account exists: deactivate it, or remove its roles.", uid=str(invitation.uid))
    if invitation.revoked_at is None:
        invitation.change(revoked_at=timezone.now())
        audit.record(principal, "invitation.revoke", invitation)
    return invitation


def find(secret: str) -> Invitation:
    """Return the open invitation of this secret. Raises InvitationEnded."""
    invitation = _open(Invitation.objects.open().filter(digest__in=_digests(secret)))
    _inviter(invitation, source_ip=None)
    return invitation


@transaction.atomic
def accept(*, secret: str, username: str, password: str, source_ip: str | None) -> User:
    """Create the account with the invitation's role. Raises InvitationEnded, NameTaken, ValidationError by field.

    The invitation is locked: of two that accept it at once, the second finds it used.
    """
    accounts.require_local_accounts()
    rows = Invitation.objects.open().select_for_update(of=["self"]).select_related("tenant")
    invitation = _open(rows.filter(digest__in=_digests(secret)))
    user = User(username=username, email=invitation.email, is_operator=invitation.operator)
    inviter = _inviter(invitation, source_ip=source_ip)
    _check(user, password)
    user.set_password(password)
    with refuse_taken(lambda: _taken(username)):
        user.save()
    invitation.change(used_at=timezone.now(), user=user)
    if invitation.tenant is not None:
        tenants.set_member(principal=inviter, tenant=invitation.tenant, user=user, role=invitation.role)
    audit.record(of_user(user, source_ip=source_ip), "invitation.accept", invitation, after={"username": username})
    return user


def _inviter(invitation: Invitation, *, source_ip: str | None) -> Principal:
    """Return the inviter, who must still be able to give the role. Raises InvitationEnded."""
    if invitation.inviter is None:
        return SYSTEM
    inviter = of_user(invitation.inviter, source_ip=source_ip)
    tenant = None if invitation.operator else invitation.tenant_id
    may = inviter.is_operator or tenant in inviter.with_role(Role.ADMIN)
    if not (invitation.inviter.is_active and may):
        raise InvitationEnded(ENDED)
    return inviter


def _taken(username: str) -> NameTaken:
    return NameTaken(gettext_noop("This name is taken: choose another one."), username=username)


def _check(user: User, password: str) -> None:
    """Check name and password, each error at its field. Raises ValidationError."""
    wrong: dict[str, list[str]] = {}
    try:
        user.full_clean(exclude=["password"], validate_unique=False)
    except ValidationError as error:
        wrong |= {name: said for name, said in error.message_dict.items() if name == "username"}
    if "username" not in wrong and User.objects.filter(username=user.username).exists():
        raise _taken(user.username)
    try:
        accounts.check_password_rules(password, user)
    except ValidationError as error:
        wrong["password"] = list(error.messages)
    if wrong:
        raise ValidationError(wrong)


def _open(rows: "Iterable[Invitation]") -> Invitation:
    for invitation in rows:
        return invitation
    raise InvitationEnded(ENDED)


def _digest(secret: str) -> str:
    return keyed_digest(f"invitation:{secret}")


def _digests(secret: str) -> list[str]:
    return keyed_digests(f"invitation:{secret}")


def _facts(invitation: Invitation) -> dict[str, object]:
    return {
        "username": invitation.username,
        "email": invitation.email,
        "role": "operator" if invitation.operator else invitation.tenant and invitation.role,
        "expires_at": invitation.expires_at.isoformat(),
    }
