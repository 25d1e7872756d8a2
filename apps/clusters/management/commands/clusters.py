"""`manage.py clusters`: watches every cluster and keeps the ledger in step with its pods.

Start as many as you like: a session advisory lock makes one of them the leader, as with the scheduler. It lost its lock
where its session is gone, and then its next statement fails, and everything begins anew.
"""

import logging
import signal
import time
from typing import Any

from django.core.management.base import BaseCommand
from django.db import InterfaceError, OperationalError, connection

from apps.clusters.services import watchers
from apps.clusters.watches import Watches
from apps.clusters.watching import Watched

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0


class Command(BaseCommand):
    """The watch over clusters."""

    help = "Watch the clusters of Kubernetes: their pods become claims, charged to their namespaces' tenants."

    stopping = False

    def handle(self, *args: Any, **options: Any) -> None:
        """Serve until SIGTERM or SIGINT; outlive restarts of the database."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        while not self.stopping:
            watches = Watches(Watched)
            try:
                if not watchers.lead():
                    time.sleep(LOOK_SECONDS)
                    continue
                logger.info("watching clusters")
                while not self.stopping:
                    # Also by this it is seen that the session, and with it the lock, is still there.
                    watches.look()
                    time.sleep(LOOK_SECONDS)
            except (InterfaceError, OperationalError) as error:
                logger.warning("database session lost, trying again in a second: %s", error)
                time.sleep(1)
            finally:
                watches.stop()
                connection.close()

    def _stop(self, *_: object) -> None:
        self.stopping = True
