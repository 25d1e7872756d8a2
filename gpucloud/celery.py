"""Celery: repair of missed pushes, roll-ups, expiry, rebalancing. Tasks take ids, may run twice, start on commit."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpucloud.settings")

app = Celery("gpucloud")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
