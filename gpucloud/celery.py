"""Celery: repair of missed pushes, roll-ups, expiry, rebalancing. Tasks take ids, may run twice, start on commit."""

import logging
import os
from typing import Any

from celery import Celery, bootsteps
from celery.signals import task_postrun, task_prerun
from django.db import close_old_connections
from kombu.transport import TRANSPORT_ALIASES

from gpucloud import heartbeat

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpucloud.settings")
# Celery runs Django's checks and drops what they find. They import every view: a third of a worker's start.
os.environ.setdefault("CELERY_SKIP_CHECKS", "true")

# kombu selects the transport class by the URL's scheme; a `redis+socket://` URL allows no other way to set it.
TRANSPORT_ALIASES |= dict.fromkeys(("redis", "rediss"), "gpucloud.broker:Transport")

logger = logging.getLogger(__name__)
app = Celery("gpucloud")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()

HEARTBEAT_SECONDS = 2.0


class Heartbeat(bootsteps.StartStopStep):  # type: ignore[misc]
    """Heartbeat of a worker's loop, by the loop's own timer, which a lost connection clears."""

    requires = ("celery.worker.consumer:Tasks",)

    def start(self, consumer: Any) -> None:
        """Beat until the connection is lost; then `gpucloud.broker` beats until there is another one."""
        consumer.timer.call_repeatedly(HEARTBEAT_SECONDS, heartbeat.beat)


app.steps["consumer"].add(Heartbeat)


@task_prerun.connect
@task_postrun.connect
def return_connections(sender: Any, **_: Any) -> None:
    """Give the process' database connection back to its pool, as after a request; close it if there is no pool."""
    if not sender.request.is_eager:
        close_old_connections()


@app.task
def run_together(names: list[str]) -> None:
    """Run these tasks one after another; log what one raises, and run the others.

    Beat, broker and worker take 10 ms for a message: more than most tasks need to find nothing to do.
    """
    for name in names:
        try:
            app.tasks[name]()
        except Exception:
            logger.exception("%s failed", name)
