"""Base of the commands that watch clusters: one process leads, the others wait."""

import logging
import signal
import time
from collections.abc import Iterable, Sequence
from typing import ClassVar

from django.core.management.base import BaseCommand
from django.db import InterfaceError, OperationalError, connection

from apps.clusters.services import watchers
from apps.clusters.watches import HANGING_SECONDS, Watch, Watches
from gpucloud import heartbeat

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
    hanging: Sequence[str] = ()

    def lead(self) -> None:
        """Serve until SIGTERM or SIGINT; survive restarts of the database."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        while not self.stopping:
            watches = [Watches(begin) for begin in self.begins]
            heartbeat.beat()
            try:
                if not watchers.lead(self.lock):
                    time.sleep(LOOK_SECONDS)
                    continue
                logger.info("leading")
                while not self.stopping:
                    # This query also shows that the session, and with it the lock, is alive.
                    for of_class in watches:
                        of_class.refresh()
                    self._beat(watches)
                    time.sleep(LOOK_SECONDS)
            except (InterfaceError, OperationalError) as error:
                logger.warning("database session lost, retrying in a second: %s", error)
                time.sleep(1)
            finally:
                for of_class in watches:
                    of_class.ask_to_stop()
                for of_class in watches:
                    of_class.stop()
                connection.close()

    def _beat(self, watches: Iterable[Watches]) -> None:
        """Beat unless a cluster's thread hangs: only another process, with new threads, can help then."""
        hanging = sorted({name for of_class in watches for name in of_class.find_hanging()})
        if not hanging:
            heartbeat.beat()
        if hanging != self.hanging:
            self.hanging = hanging
            for name in hanging:
                logger.error("cluster %s: its thread has not moved for %.0f s", name, HANGING_SECONDS)

    def _stop(self, *_: object) -> None:
        self.stopping = True
