"""Celery's doors of this app."""

from datetime import timedelta

from celery import shared_task
from django.utils import timezone

from apps.nodes.models import Sample

# Raw seconds explain an incident; history is the work of roll-ups.
KEPT = timedelta(hours=24)


@shared_task
def drop_old_samples() -> int:
    """Drop raw samples after a day; returns how many."""
    return Sample.objects.filter(at__lt=timezone.now() - KEPT).delete()[0]
