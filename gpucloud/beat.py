"""Celery's beat without the apps: it sends tasks by name and by the clock, and runs none of them."""

from celery import Celery
from django.conf import settings
from django.utils.log import configure_logging

# The app of the workers would set up Django and import every task: two thirds of beat's start and memory.
app = Celery("gpucloud", fixups=[])
app.config_from_object("django.conf:settings", namespace="CELERY")
configure_logging(settings.LOGGING_CONFIG, settings.LOGGING)
