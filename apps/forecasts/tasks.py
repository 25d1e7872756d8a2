"""Celery tasks of this app."""

from celery import shared_task


@shared_task
def follow_use() -> int:
    """Record the use of claims and renew their forecasts; return the number of claims with one."""
    from apps.forecasts import services  # noqa: PLC0415 - numpy, which few processes need

    return services.follow_use()
