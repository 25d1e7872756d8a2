"""Mails about accounts, sent if a mail server is configured."""

import logging

from django.conf import settings
from django.core.mail import send_mail
from django.utils.translation import gettext

logger = logging.getLogger(__name__)


def is_configured() -> bool:
    """Return True if mails can be sent."""
    return bool(settings.EMAIL_HOST)


def send_invitation(*, address: str, link: str, inviter: str) -> bool:
    """Send an invitation's link; return False if that failed."""
    words = gettext(
        "{0} invites you to gpucloud. Open this link to choose a name and a password:\n\n{1}\n\nThe link works once."
    )
    return _send(address, gettext("Invitation to gpucloud"), words.format(inviter, link))


def send_reset(*, address: str, username: str, link: str) -> bool:
    """Send the link with which a user sets a password; return False if that failed."""
    words = gettext(
        "Open this link to set a new password for {0}:\n\n{1}\n\nIt works once. Ignore it if you did not ask for it."
    )
    return _send(address, gettext("Your gpucloud password"), words.format(username, link))


def _send(address: str, subject: str, text: str) -> bool:
    if not is_configured():
        return False
    try:
        return send_mail(subject, text, settings.DEFAULT_FROM_EMAIL, [address]) == 1
    except OSError as error:  # of which smtplib's errors are kinds
        logger.warning("a mail could not be sent: %r", error)
        return False
