"""Celery: repair of missed pushes, roll-ups, expiry, rebalancing. Tasks take ids, may run twice, start on commit."""

import os

from celery import Celery
from kombu.transport import TRANSPORT_ALIASES

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpucloud.settings")

# By the scheme of its URL kombu finds the class; a `redis+socket://` URL takes no other word for it.
TRANSPORT_ALIASES |= dict.fromkeys(("redis", "rediss"), "gpucloud.broker:Transport")

app = Celery("gpucloud")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
