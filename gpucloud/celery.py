"""Celery: repair of missed pushes, roll-ups, expiry, rebalancing. Tasks take ids, may run twice, start on commit."""

import os

from celery import Celery
from kombu.transport import TRANSPORT_ALIASES

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpucloud.settings")

# kombu selects the transport class by the URL's scheme; a `redis+socket://` URL allows no other way to set it.
TRANSPORT_ALIASES |= dict.fromkeys(("redis", "rediss"), "gpucloud.broker:Transport")

app = Celery("gpucloud")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
