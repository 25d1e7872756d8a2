"""Celery tasks of this app."""

from celery import shared_task

from apps.nodes.services.telemetry import partitions, rolling


@shared_task
def keep_partitions() -> tuple[int, int]:
    """Create partitions ahead and drop expired ones; return the number of each."""
    return partitions.keep_up()


@shared_task
def roll_up_telemetry() -> int:
    """Bring all roll-ups up to date; return the number of rows written."""
    return rolling.roll_up()
