"""Celery tasks of this app."""

from celery import shared_task

from apps.reservations import clock
from apps.scheduling.events import DRIVE_RESERVATIONS


@shared_task(name=DRIVE_RESERVATIONS)
def drive_reservations() -> int:
    """Begin and end reservations as their time has come; return the number of changes."""
    return clock.drive()
