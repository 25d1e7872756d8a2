"""Celery tasks of this app."""

from celery import shared_task

from apps.groups import sizing


@shared_task
def size_groups() -> int:
    """Let elastic groups grow where there is room, and tell their programs; return the number of groups changed."""
    return sizing.drive()
