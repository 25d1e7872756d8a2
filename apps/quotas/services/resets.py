"""Links to set a new password: made by an operator, or sent by mail to whoever asks.

Django's generator makes the tokens: they depend on the password and the last sign-in, so they work once, and end after
PASSWORD_RESET_TIMEOUT.
"""

import logging
from datetime import datetime, timedelta

from django.conf import settings
from django.contrib.auth.tokens import default_token_generator
from django.db import transaction
from django.urls import reverse
from django.utils import timezone
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_encode

from apps.quotas.models import User
from apps.quotas.principals import Principal, of_user
from apps.quotas.services import accounts, attempts, audit, mail
from apps.quotas.services.invitations import ENDED
from apps.quotas.services.tenants import refuse_beyond
from gpucloud.errors import Missing

logger = logging.getLogger(__name__)


@transaction.atomic
def make_link(*, principal: Principal, user: User) -> tuple[str, datetime]:
    """Return the path of a link with which the user sets a password, and its end. Operators only.

    Raises Denied, LocalAccountsOff, Inactive, SignsInElsewhere.
    """
    principal.require_operator()
    # Who holds the link can act as the user.
    refuse_beyond(principal)
    accounts.require_local_accounts()
    if not user.is_active:
        raise accounts.Inactive(f"{user.get_username()} cannot sign in: activate the account first.")
    if not user.has_usable_password() and user.identities.exists():
        raise accounts.SignsInElsewhere(f"{user.get_username()} has no password here: reset it at the provider.")
    audit.record(principal, "person.reset_link", user)
    return _path(user), timezone.now() + timedelta(seconds=settings.PASSWORD_RESET_TIMEOUT)


class LinkEnded(Missing, code="reset-link-ended", title="This link does not work"):
    """The link was used or has expired, or its account was deactivated."""


@transaction.atomic
def use_link(*, user: User, token: str, password: str, source_ip: str | None) -> User:
    """Set the password by a link's token, and end all sessions. Raises LinkEnded, LocalAccountsOff, ValidationError.

    The token is checked on the locked user: of two that use it at once, the second finds another password.
    """
    user = User.objects.select_for_update().get(pk=user.pk)
    if not user.is_active or not default_token_generator.check_token(user, token):
        raise LinkEnded(ENDED)
    return accounts.set_password(principal=of_user(user, source_ip=source_ip), user=user, password=password)


def send_link(*, address: str, base_url: str) -> int:
    """Send a link to each active user with a password and this mail address; return how many were sent.

    Runs in the worker, so that the page answers in the same time whether or not there is such a user.
    """
    if not settings.LOCAL_ACCOUNTS:
        return 0
    sent = 0
    for user in User.objects.filter(email__iexact=address, is_active=True):
        if not user.has_usable_password():
            continue
        try:
            attempts.take(attempts.RESET_MAIL, str(user.pk))
        except attempts.TooManyAttempts:
            logger.warning("no reset mail for user %s: too many were sent", user.pk)
            continue
        link = base_url.rstrip("/") + _path(user)
        sent += mail.send_reset(address=user.email, username=user.get_username(), link=link)
    return sent


def _path(user: User) -> str:
    uid = urlsafe_base64_encode(force_bytes(user.pk))
    return reverse("set-password", args=[uid, default_token_generator.make_token(user)])
