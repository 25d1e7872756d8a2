"""Celery's beat without the apps: it sends tasks by name and by the clock, and runs none of them."""

from typing import Any

from celery import Celery
from celery.beat import PersistentScheduler
from django.conf import settings
from django.utils.log import configure_logging

from gpucloud import heartbeat


class Scheduler(PersistentScheduler):  # type: ignore[misc]
    """Celery's own scheduler, with a heartbeat."""

    def tick(self, *args: Any, **options: Any) -> Any:
        """Send what is due. Celery calls this in a loop."""
        heartbeat.beat()
        return super().tick(*args, **options)


# The app of the workers would set up Django and import every task: two thirds of beat's start and memory.
app = Celery("gpucloud", fixups=[])
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.beat_scheduler = Scheduler
configure_logging(settings.LOGGING_CONFIG, settings.LOGGING)
