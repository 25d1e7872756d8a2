"""Celery tasks of this app."""

from celery import shared_task

from apps.whatif import services


@shared_task
def run_what_if(key: int, number: str) -> bool:
    """Run one ordered what-if; return whether it was still wanted."""
    return services.run(key, number)
