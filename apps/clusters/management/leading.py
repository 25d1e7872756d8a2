"""What the commands that watch clusters have in common: of those that are started one leads, the others wait."""

import logging
import signal
import time
from typing import ClassVar

from django.core.management.base import BaseCommand
from django.db import InterfaceError, OperationalError, connection

from apps.clusters.services import watchers
from apps.clusters.watches import Watch, Watches

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0


class Leading(BaseCommand):
    """Watches every cluster while it leads, by a session advisory lock, as with the scheduler.

    It lost its lock where its session is gone, and then its next statement fails, and everything begins anew.
    """

    lock: ClassVar[int]
    # What a cluster's thread is made by.
    begin: ClassVar[type[Watch]]
    stopping = False

    def lead(self) -> None:
        """Serve until SIGTERM or SIGINT; outlive restarts of the database."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        while not self.stopping:
            watches = Watches(self.begin)
            try:
                if not watchers.lead(self.lock):
                    time.sleep(LOOK_SECONDS)
                    continue
                logger.info("leading")
                while not self.stopping:
                    # Also by this it is seen that the session, and with it the lock, is still there.
                    watches.refresh()
                    time.sleep(LOOK_SECONDS)
            except (InterfaceError, OperationalError) as error:
                logger.warning("database session lost, trying again in a second: %s", error)
                time.sleep(1)
            finally:
                watches.stop()
                connection.close()

    def _stop(self, *_: object) -> None:
        self.stopping = True
