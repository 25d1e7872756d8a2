"""Celery's doors of this app."""

from datetime import timedelta

from celery import shared_task
from django.utils import timezone

from apps.quotas.models import IdempotencyRecord

# A client that retries after a day has lost track of what it did.
KEPT = timedelta(days=1)


@shared_task
def forget_idempotency() -> int:
    """Drop remembered answers after a day; returns how many."""
    return IdempotencyRecord.objects.filter(created_at__lt=timezone.now() - KEPT).delete()[0]
