"""Mails of waiting lines: made once for each line, and sent under a lease.

1. Lines of events are written (`expanding`).
2. Each person's due lines become one mail, under the lock of the person's choices; in quiet hours, those that pass.
3. Each mail is leased, sent, and marked, or put off to the end of quiet hours; a killed sender's mail is due again when
   its lease ends, under the same Message-ID: SMTP has no way to ask whether it arrived.
"""

import logging
import smtplib
from datetime import datetime, timedelta

from django.core.mail import get_connection
from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.utils import timezone

from apps.notices import expanding, timing
from apps.notices.composing import MOST_LINES, compose
from apps.notices.models import URGENT, Mail, MailState, Notice, NoticeSettings
from apps.quotas.models import User
from apps.quotas.models.tenant import Membership
from apps.quotas.services import mail as mail_server

logger = logging.getLogger(__name__)

# Least time between two mails to one person: what happens meanwhile comes in one mail.
PAUSE, URGENT_PAUSE = timedelta(minutes=5), timedelta(minutes=1)
# Longer than an attempt: connecting and each answer have EMAIL_TIMEOUT.
LEASE = timedelta(minutes=3)
# Pauses after failed attempts, none after the last: half a day.
WAITS = (60, 300, 900, 3600, 3 * 3600, 8 * 3600)
MOST_MAILS = 100


def send_notices() -> int:
    """Expand events, make due mails and send them; return the number of mails sent."""
    if not mail_server.is_configured():
        return 0
    expanding.expand()
    now = timezone.now()
    for user in Notice.objects.filter(mail=None, due_at__lte=now).order_by().values_list("user", flat=True).distinct():
        _gather(user, now)
    due = Mail.objects.filter(state=MailState.PENDING, next_attempt_at__lte=now).order_by("pk")
    return sum(_send(key) for key in due.values_list("pk", flat=True)[:MOST_MAILS])


@transaction.atomic
def _gather(user: int, now: datetime) -> Mail | None:
    """Put the person's due lines into one mail; None if another worker does, or the last mail was a moment ago."""
    rows = NoticeSettings.objects.select_for_update(of=("self",), skip_locked=True).select_related("user")
    choices = rows.filter(user=user).first()
    if choices is None:
        return None
    waiting = Notice.objects.filter(user=user, mail=None, due_at__lte=now)
    if timing.quiet_until(choices, now):
        waiting = waiting.filter(kind__in=timing.passing(choices))
    pause = URGENT_PAUSE if waiting.filter(kind__in=URGENT).exists() else PAUSE
    if not waiting.exists() or (choices.last_mail_at and now < choices.last_mail_at + pause):
        return None
    made = Mail.objects.create(user_id=user, next_attempt_at=now)
    waiting.update(mail=made)
    NoticeSettings.objects.filter(pk=choices.pk).update(last_mail_at=now)
    return made


def _send(key: int) -> bool:
    """Send one mail, if no other worker has it; return True if it was sent."""
    mail = _lease(key)
    if mail is None:
        return False
    notices = _readable(mail.user).filter(mail=mail)
    total = notices.count()
    if not mail.user.is_active or not mail.user.email or not (total or mail.is_test):
        return _record(mail, state=MailState.DROPPED, error="Its reader may not see it any more.") and False
    choices = NoticeSettings.objects.filter(user=mail.user).first() or NoticeSettings(user=mail.user)
    choices.user = mail.user
    letter = compose(mail, list(notices.select_related("tenant").order_by("pk")[:MOST_LINES]), total, choices)
    try:
        with get_connection() as connection:
            connection.send_messages([letter])
    except smtplib.SMTPRecipientsRefused as error:
        code, why = next(iter(error.recipients.values()))
        _record_failure(
            mail, f"The mail server refuses your address: {code} {why.decode(errors='replace')}", code >= 500
        )
    except smtplib.SMTPResponseException as error:
        said = error.smtp_error.decode(errors="replace") if isinstance(error.smtp_error, bytes) else error.smtp_error
        _record_failure(mail, f"The mail server answers {error.smtp_code} {said}", final=False)
    except OSError as error:  # of which smtplib's other errors are kinds
        _record_failure(mail, f"The mail server cannot be reached: {error}", final=False)
    else:
        return _record(mail, state=MailState.SENT, error=None, sent_at=timezone.now())
    return False


@transaction.atomic
def _lease(key: int) -> Mail | None:
    """Return the mail under a lease; None if it is gone, another worker has it, or quiet hours put it off."""
    now = timezone.now()
    rows = Mail.objects.select_for_update(of=("self",), skip_locked=True).select_related("user")
    mail = rows.filter(pk=key, state=MailState.PENDING, next_attempt_at__lte=now).first()
    if mail and (quiet_until := _quiet_until(mail, now)):
        mail.change(next_attempt_at=quiet_until)
        return None
    return mail and mail.change(attempts=mail.attempts + 1, next_attempt_at=now + LEASE)


def _quiet_until(mail: Mail, now: datetime) -> datetime | None:
    """Return when the quiet hours end that keep the mail; None if it may go."""
    choices = NoticeSettings.objects.select_related("user").filter(user=mail.user).first()
    if choices is None or mail.is_test or mail.notices.filter(kind__in=timing.passing(choices)).exists():
        return None
    return timing.quiet_until(choices, now)


def _readable(user: User) -> "QuerySet[Notice]":
    """Return the lines about tenants of which the person is a member now; of the platform, for operators."""
    is_member = Exists(Membership.objects.filter(tenant=OuterRef("tenant"), user=user))
    return Notice.objects.filter(is_member | (Q(tenant=None) if user.is_operator else Q(pk=None)))


def _record(mail: Mail, **values: object) -> bool:
    """Write the result, if the lease is still this worker's."""
    rows = Mail.objects.filter(pk=mail.pk, version=mail.version)
    return bool(rows.update(version=F("version") + 1, updated_at=timezone.now(), **values))


def _record_failure(mail: Mail, why: str, final: bool) -> None:
    logger.warning("mail %s of notices: %s", mail.uid, why)
    if final or mail.attempts > len(WAITS):
        _record(mail, state=MailState.FAILED, error=why[:300])
    else:
        again = timezone.now() + timedelta(seconds=WAITS[mail.attempts - 1])
        _record(mail, next_attempt_at=again, error=why[:300])


def drop_old(*, before: datetime) -> int:
    """Delete mails from before this time with their lines; return their number."""
    return Mail.objects.filter(created_at__lt=before).exclude(state=MailState.PENDING).delete()[0]
