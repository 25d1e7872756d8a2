"""Choices of a person: which events are mailed, and when."""

from typing import Any

from django.conf import settings
from django.core import signing
from django.db import transaction
from django.urls import reverse
from django.utils import timezone

from apps.notices.models import EVENTS, Mail, MailState, Notice, NoticeKind, NoticeSettings, When
from apps.quotas.models import User
from apps.quotas.models.webhook import Webhook
from apps.quotas.principals import Principal, of_user
from apps.quotas.services import audit, mail, tokens
from gpucloud import locks
from gpucloud.api import etags
from gpucloud.errors import Conflict, Missing

SALT = "notices.unsubscribe"


class NoAddress(Conflict, code="notice-address", title="There is no address to mail to"):
    """The server sends no mail, or the person has no address."""


class LinkUnknown(Missing, code="notice-link", title="This link does not work"):
    """The link to end all notices was changed, or its person is gone."""


def settings_of(user: User) -> NoticeSettings:
    """Return the person's choices; unsaved defaults if they never chose."""
    return NoticeSettings.objects.filter(user=user).first() or NoticeSettings(user=user)


@transaction.atomic
def choose(*, principal: Principal, versions: etags.Versions = None, **values: Any) -> NoticeSettings:
    """Set the caller's choices. Raises RoleMissing (no person), NoAddress, PreconditionFailed, ValidationError."""
    user = tokens.require_own_rights(principal)
    row, _ = NoticeSettings.objects.get_or_create(user=user)
    row = etags.lock(row, versions)
    if any(values.get(kind, When.OFF) != When.OFF for kind in NoticeKind.values):
        require_address(user)
    for name, value in values.items():
        setattr(row, name, value)
    row.clean_fields(exclude={field.name for field in row._meta.fields} - values.keys())  # noqa: SLF001 - Django's own
    row.change(**values)
    audit.record(principal, "notices.change", user, after=values)
    _subscribe()
    return row


@transaction.atomic
def send_test(*, principal: Principal) -> Mail:
    """Queue a test mail to the caller. Raises RoleMissing, NoAddress."""
    user = tokens.require_own_rights(principal)
    require_address(user)
    audit.record(principal, "notices.test", user)
    Mail.objects.filter(user=user, is_test=True, state="pending").delete()
    return Mail.objects.create(user=user, is_test=True, next_attempt_at=timezone.now())


def require_address(user: User) -> None:
    """Refuse a person to whom no mail can go. Raises NoAddress."""
    if not mail.is_configured():
        raise NoAddress("This server sends no mail: its operator sets EMAIL_HOST.")
    if not user.email:
        raise NoAddress("Your account has no mail address: it comes from your invitation or your identity provider.")


def unsubscribe_path(user: User) -> str:
    """Return the path of the link that ends all notices of the person."""
    return reverse("unsubscribe", args=[signing.dumps(user.pk, salt=SALT)])


@transaction.atomic
def unsubscribe(token: str) -> User:
    """Turn every kind off for the person of the link. Raises LinkUnknown."""
    user = user_of(token)
    row = NoticeSettings.objects.select_for_update().filter(user=user).first()
    if row is not None and row.chosen:
        row.change(**dict.fromkeys(NoticeKind.values, When.OFF))
        # What waits for the daily mail, or for another attempt, is not mailed either.
        Notice.objects.filter(user=user, mail=None).delete()
        waiting = Mail.objects.filter(user=user, is_test=False, state=MailState.PENDING)
        waiting.update(state=MailState.DROPPED, next_attempt_at=None)
        audit.record(of_user(user), "notices.unsubscribe", user)
        _subscribe()
    return user


def user_of(token: str) -> User:
    """Return the person of a link. Raises LinkUnknown."""
    try:
        return User.objects.get(pk=signing.loads(token, salt=SALT))
    except (signing.BadSignature, User.DoesNotExist) as error:
        raise LinkUnknown("This link was cut or changed: choose your notices on the page of your account.") from error


def _subscribe() -> None:
    """Have the outbox record the events that somebody chose; the others cost nothing."""
    locks.serialize_transaction("subscription of notices")
    kinds = {kind for row in NoticeSettings.objects.all() for kind in row.chosen}
    events = sorted(str(event) for kind in kinds for event in EVENTS[NoticeKind(kind)])
    Webhook.record_for_people(events)


def mail_link(path: str) -> str:
    """Return the address of a path for mails; empty without PUBLIC_URL."""
    return settings.PUBLIC_URL + path if settings.PUBLIC_URL else ""
