"""Celery tasks of this app."""

from celery import shared_task

from apps.instances import room, seats


@shared_task
def drive_instances() -> int:
    """Place claims that wait for room in an instance, and end those whose instance ends; return their number."""
    return seats.drive()


@shared_task
def propose_room() -> int:
    """Propose to place claims again where that makes room for an instance; return the number of changes."""
    return room.drive()
