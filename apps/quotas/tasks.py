"""Celery's doors of this app."""

from datetime import timedelta
from importlib import import_module

from celery import shared_task
from django.conf import settings
from django.utils import timezone

from apps.quotas.models import IdempotencyRecord
from apps.quotas.services import attempts, audit_chain, requests
from apps.quotas.services.webhooks import sending

# A client that retries after a day has lost track of what it did.
KEPT = timedelta(days=1)


@shared_task
def forget_idempotency() -> int:
    """Drop remembered answers after a day; returns how many."""
    return IdempotencyRecord.objects.filter(created_at__lt=timezone.now() - KEPT).delete()[0]


@shared_task
def forget_sign_ins() -> int:
    """Drop sessions and counted attempts that have ended; returns how many attempts."""
    import_module(settings.SESSION_ENGINE).SessionStore.clear_expired()
    return attempts.forget()


@shared_task
def seal_audit() -> int:
    """Chain the audit events that were committed since the last time; returns how many."""
    return audit_chain.seal()


@shared_task
def verify_audit() -> int:
    """The nightly check; what is wrong is in the log. Returns how many faults there are."""
    return len(audit_chain.verify().faults)


@shared_task
def lapse_requests() -> int:
    """Take back what was granted until now; returns how many requests lapsed."""
    return requests.lapse_due()


# The log of deliveries is for finding what went wrong this month.
DELIVERIES_KEPT = timedelta(days=30)


@shared_task
def deliver_webhooks() -> int:
    """Send what webhooks are to be told, until nothing is due; returns how many attempts it made."""
    return sending.deliver()


@shared_task
def drop_old_deliveries() -> int:
    """Drop messages of webhooks after a month; returns how many."""
    return sending.drop_old(before=timezone.now() - DELIVERIES_KEPT)
