"""Celery's doors of this app."""

from celery import shared_task

from apps.nodes.services.telemetry import partitions


@shared_task
def keep_partitions() -> tuple[int, int]:
    """Make partitions ahead and drop those whose time is over; how many of each."""
    return partitions.keep_up()
