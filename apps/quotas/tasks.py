"""Celery tasks of this app."""

from datetime import timedelta
from importlib import import_module

from celery import shared_task
from django.conf import settings
from django.utils import timezone

from apps.quotas.models import IdempotencyRecord
from apps.quotas.services import attempts, audit_chain, requests, resets
from apps.quotas.services.webhooks import sending

# A client that retries after a day has lost track of what it did.
KEPT = timedelta(days=1)


@shared_task
def forget_idempotency() -> int:
    """Delete stored responses after a day; return their number."""
    return IdempotencyRecord.objects.filter(created_at__lt=timezone.now() - KEPT).delete()[0]


@shared_task
def forget_sign_ins() -> int:
    """Delete expired sessions and windows of attempts; return the number of windows."""
    import_module(settings.SESSION_ENGINE).SessionStore.clear_expired()
    return attempts.forget()


@shared_task
def send_reset_link(address: str, base_url: str) -> int:
    """Mail a link to set a new password to the users of this address; return their number."""
    return resets.send_link(address=address, base_url=base_url)


@shared_task
def seal_audit() -> int:
    """Chain new audit events; return their number."""
    return audit_chain.seal()


@shared_task
def verify_audit() -> int:
    """Verify the audit chain nightly and log its faults; return their number."""
    return len(audit_chain.verify().faults)


@shared_task
def lapse_requests() -> int:
    """End expired grants; return the number of lapsed requests."""
    return requests.lapse_due()


# Deliveries serve to find failures of the last month.
DELIVERIES_KEPT = timedelta(days=30)


@shared_task
def deliver_webhooks() -> int:
    """Deliver messages until nothing is due; return the number of attempts."""
    return sending.deliver()


@shared_task
def drop_old_deliveries() -> int:
    """Delete messages of webhooks after a month; return their number."""
    return sending.drop_old(before=timezone.now() - DELIVERIES_KEPT)
