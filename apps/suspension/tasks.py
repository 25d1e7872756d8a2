"""Celery tasks of this app."""

from celery import shared_task

from apps.suspension import evacuating, scheduled
from apps.suspension.between import expiring
from apps.suspension.rotation import rotating


@shared_task
def rotate_claims() -> int:
    """Let the claims of oversubscribed pools share their GPUs by time; return the number of claims changed."""
    return rotating.drive()


@shared_task
def leave_unhealthy_gpus() -> int:
    """Move claims away from unhealthy GPUs; return the number of claims changed."""
    return evacuating.drive()


@shared_task
def give_up_moves() -> int:
    """Let claims whose new node is lost go on where they were; return their number."""
    return expiring.give_up()


@shared_task
def keep_schedules() -> int:
    """Suspend claims outside of their schedules, and resume them inside; return the number of claims changed."""
    return scheduled.drive()
