"""Users' accounts: activation, the operator's role, passwords, sessions, the time zone."""

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone
from redis.exceptions import RedisError

from apps.quotas.models import Invitation, Token, User, UserSession
from apps.quotas.principals import Principal
from apps.quotas.services import audit
from apps.quotas.services.tenants import refuse_beyond
from gpucloud import hints
from gpucloud.errors import Conflict
from gpucloud.schedules import time_zones
from gpucloud.web import sessions as session_store

logger = logging.getLogger(__name__)

# Members of a session's data, written at sign-in.
SESSION_ID, ADDRESS, BROWSER = "public_id", "address", "browser"


class LastOperator(Conflict, code="last-operator", title="The last operator"):
    """Nobody else could administer the platform."""


class LocalAccountsOff(Conflict, code="local-accounts-off", title="Passwords and invitations are switched off"):
    """Accounts with passwords are switched off."""


class SignsInElsewhere(Conflict, code="signs-in-elsewhere", title="The identity provider signs this user in"):
    """The identity provider has the user's password."""


class Inactive(Conflict, code="account-inactive", title="The account is deactivated"):
    """The account is deactivated."""


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """A session as its user sees it. `id` is not the session's key, which is a secret."""

    id: str
    started_at: datetime
    last_seen_at: datetime
    source_ip: str | None
    browser: str
    current: bool


def require_local_accounts() -> None:
    """Require that passwords and invitations are allowed. Raises LocalAccountsOff."""
    if not settings.LOCAL_ACCOUNTS:
        raise LocalAccountsOff("Users sign in with your organisation's identity provider: add them there.")


def watch_group(user_pk: int) -> str:
    """Return the group of open pages of a user, which close when the user's sessions end."""
    return f"person.{user_pk}"


@transaction.atomic
def set_active(*, principal: Principal, user: User, active: bool) -> User:
    """Deactivate a user, or activate them again; repeatable. Raises Denied, LastOperator.

    Deactivation ends the user's sessions and revokes their tokens and open invitations: a later activation does not
    bring them back.
    """
    principal.require_operator()
    if active:
        refuse_beyond(principal)
    user = _locked(user, keeps_operator=active)
    if user.is_active == active:
        return user
    user.is_active = active
    user.save(update_fields=["is_active"])
    ended = {} if active else _end_everything(user)
    action = "person.activate" if active else "person.deactivate"
    audit.record(principal, action, user, before={"active": not active}, after={"active": active, **ended})
    return user


@transaction.atomic
def set_operator(*, principal: Principal, user: User, operator: bool) -> User:
    """Make a user an operator, or take that role from them; repeatable. Raises Denied, LastOperator."""
    principal.require_operator()
    if operator:
        refuse_beyond(principal)
    user = _locked(user, keeps_operator=operator)
    if user.is_operator != operator:
        user.is_operator = operator
        user.save(update_fields=["is_operator"])
        before, after = {"is_operator": not operator}, {"is_operator": operator}
        audit.record(principal, "person.operator", user, before=before, after=after)
    return user


def check_password_rules(password: str, user: User) -> None:
    """Check a new password by the configured rules. Raises ValidationError."""
    validate_password(password, user)


@transaction.atomic
def set_password(*, principal: Principal, user: User, password: str, keep: str | None = None) -> User:
    """Set a user's password and end their sessions, except the one with the key `keep`. Raises ValidationError."""
    require_local_accounts()
    user = User.objects.select_for_update().get(pk=user.pk)
    check_password_rules(password, user)
    user.set_password(password)
    user.save(update_fields=["password"])
    ended = _end_sessions(user, keep=keep)
    audit.record(principal, "person.password", user, after={"sessions_ended": ended})
    return user


@transaction.atomic
def set_time_zone(*, principal: Principal, user: User, name: str) -> User:
    """Set the zone of the times on the user's pages; empty: the server's. Raises ValidationError."""
    if name and name not in time_zones():
        raise ValidationError("There is no time zone of this name: use one like Europe/Berlin.")
    before = user.time_zone
    if before != name:
        user.time_zone = name
        user.save(update_fields=["time_zone"])
        audit.record(principal, "person.change", user, before={"time_zone": before}, after={"time_zone": name})
    return user


def sessions_of(user: User, *, current: str | None = None) -> list[SessionFacts]:
    """Return the user's sessions, last used first; `current` is the key of the caller's."""
    rows = UserSession.objects.filter(user=user, expire_date__gt=timezone.now())
    found = [_facts(row, current) for row in rows]
    return sorted(found, key=lambda one: one.last_seen_at, reverse=True)


@transaction.atomic
def end_sessions(*, principal: Principal, user: User, only: str | None = None, keep: str | None = None) -> int:
    """End one of the user's sessions (by its id), or all but the one with the key `keep`; return their number."""
    ended = _end_sessions(user, only=only, keep=keep)
    if ended:
        audit.record(principal, "person.sign_out", user, after={"sessions_ended": ended})
    return ended


def _facts(row: UserSession, current: str | None) -> SessionFacts:
    data: dict[str, Any] = row.get_decoded()
    begun = float(data.get(session_store.BEGUN, 0))
    return SessionFacts(
        id=str(data.get(SESSION_ID, "")),
        started_at=datetime.fromtimestamp(begun, UTC),
        last_seen_at=datetime.fromtimestamp(float(data.get(session_store.USED, begun)), UTC),
        source_ip=data.get(ADDRESS),
        browser=str(data.get(BROWSER, "")),
        current=row.session_key == current,
    )


def _end_sessions(user: User, *, only: str | None = None, keep: str | None = None) -> int:
    """Delete sessions, and close the pages that are open in them."""
    rows = list(UserSession.objects.filter(user=user).exclude(session_key=keep or ""))
    if only is not None:
        rows = [row for row in rows if row.get_decoded().get(SESSION_ID) == only]
    ended, _ = UserSession.objects.filter(pk__in=[row.pk for row in rows]).delete()
    transaction.on_commit(lambda: _close_pages(user.pk))
    return ended


def _close_pages(user_pk: int) -> None:
    """Have open pages check their sessions now; without this hint they do so within a minute."""
    try:
        hints.publish([(watch_group(user_pk), {"type": "live.check"})])
    except (RedisError, OSError) as error:
        logger.warning("open pages of user %s close within a minute: %r", user_pk, error)


def _end_everything(user: User) -> dict[str, int]:
    """End the user's sessions, tokens and open invitations; return their numbers."""
    tokens = list(Token.objects.select_for_update().filter(user=user).alive())
    invitations = list(Invitation.objects.select_for_update().filter(inviter=user).open())
    for row in (*tokens, *invitations):
        row.change(revoked_at=timezone.now())
    return {
        "sessions_ended": _end_sessions(user),
        "tokens_revoked": len(tokens),
        "invitations_revoked": len(invitations),
    }


def _locked(user: User, *, keeps_operator: bool) -> User:
    """Return the user, locked; if they stop being an active operator, require another one. Raises LastOperator.

    All active operators are locked in one order, so that two who remove each other at once do not both succeed.
    """
    if not keeps_operator:
        operators = User.objects.select_for_update().filter(is_operator=True, is_active=True).order_by("pk")
        if [one.pk for one in operators] == [user.pk]:
            raise LastOperator(f"{user.get_username()} is the last active operator: make another one first.")
    return User.objects.select_for_update().get(pk=user.pk)
