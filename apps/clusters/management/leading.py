"""Base of the commands that watch clusters: one process leads, the others wait."""

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
    """Command that watches every cluster while it holds a session advisory lock, as the scheduler does.

    If the session ends the lock is lost; then the next statement fails, and everything starts again.
    """

    lock: ClassVar[int]
    # Classes of a cluster's threads.
    begins: ClassVar[tuple[type[Watch], ...]]
    stopping = False

    def lead(self) -> None:
        """Serve until SIGTERM or SIGINT; survive restarts of the database."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        while not self.stopping:
            watches = [Watches(begin) for begin in self.begins]
            try:
                if not watchers.lead(self.lock):
                    time.sleep(LOOK_SECONDS)
                    continue
                logger.info("leading")
                while not self.stopping:
                    # This query also shows that the session, and with it the lock, is alive.
                    for of_class in watches:
                        of_class.refresh()
                    time.sleep(LOOK_SECONDS)
            except (InterfaceError, OperationalError) as error:
                logger.warning("database session lost, retrying in a second: %s", error)
                time.sleep(1)
            finally:
                for of_class in watches:
                    of_class.stop()
                connection.close()

    def _stop(self, *_: object) -> None:
        self.stopping = True
