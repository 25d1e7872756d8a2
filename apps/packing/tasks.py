"""Celery tasks of this app."""

from celery import shared_task

from apps.packing import packing


@shared_task
def pack_claims() -> int:
    """Put claims together and part them in the pools that want that; return the number of changes."""
    return packing.drive()
