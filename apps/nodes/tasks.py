"""Celery's doors of this app."""

from celery import shared_task

from apps.nodes.services.telemetry import partitions, rolling


@shared_task
def keep_partitions() -> tuple[int, int]:
    """Make partitions ahead and drop those whose time is over; how many of each."""
    return partitions.keep_up()


@shared_task
def roll_up_telemetry() -> int:
    """Bring all roll-ups up to now; how many rows were written."""
    return rolling.roll_up()
