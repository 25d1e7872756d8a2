"""Celery tasks of this app."""

from celery import shared_task

from apps.instances import seats


@shared_task
def drive_instances() -> int:
    """Place claims that wait for room in an instance, and end those whose instance ends; return their number."""
    return seats.drive()
