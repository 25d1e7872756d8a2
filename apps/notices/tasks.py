"""Celery tasks of this app."""

from datetime import timedelta

from celery import shared_task
from django.utils import timezone

from apps.notices import mailing

# Sent lines serve to answer "was I told?".
KEPT = timedelta(days=30)


@shared_task
def send_notices() -> int:
    """Mail what people chose to be told; return the number of mails."""
    return mailing.send_notices()


@shared_task
def drop_old_mails() -> int:
    """Delete mails of notices after a month; return their number."""
    return mailing.drop_old(before=timezone.now() - KEPT)
