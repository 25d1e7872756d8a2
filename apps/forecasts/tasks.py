"""Celery tasks of this app."""

from celery import shared_task

from apps.forecasts import services


@shared_task
def follow_use() -> int:
    """Record the use of claims and renew their forecasts; return the number of claims with one."""
    return services.follow_use()
