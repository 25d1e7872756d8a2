"""`manage.py clusters`: watches every cluster and keeps the ledger in step with its pods.

Start as many as you like: a session advisory lock makes one of them the leader, as with the scheduler. It lost its lock
where its session is gone, and then its next statement fails, and everything begins anew.
"""

import logging
import queue
import signal
import time
from typing import Any

from django.core.management.base import BaseCommand
from django.db import InterfaceError, OperationalError, connection

from apps.clusters.models import Cluster
from apps.clusters.services import watchers
from apps.clusters.watching import Heard, Watched

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
# What could not be written down is tried again; a tenant's quota may have room by now.
AGAIN_SECONDS = 10.0
# How long Kubernetes may believe an old quota. Each look is one list, and a few queries for each bound namespace.
QUOTA_SECONDS = 5.0


class Command(BaseCommand):
    """The watch over clusters."""

    help = "Watch the clusters of Kubernetes: their pods become claims, charged to their namespaces' tenants."

    stopping = False

    def handle(self, *args: Any, **options: Any) -> None:
        """Serve until SIGTERM or SIGINT; outlive restarts of the database."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        while not self.stopping:
            watches = Watches()
            try:
                if not watchers.lead():
                    time.sleep(LOOK_SECONDS)
                    continue
                logger.info("watching clusters")
                while not self.stopping:
                    watches.step()
            except (InterfaceError, OperationalError) as error:
                logger.warning("database session lost, trying again in a second: %s", error)
                time.sleep(1)
            finally:
                watches.stop()
                connection.close()

    def _stop(self, *_: object) -> None:
        self.stopping = True


class Watches:
    """All clusters that are watched, and the queue of what was heard of them."""

    def __init__(self) -> None:
        self._heard: queue.SimpleQueue[Heard] = queue.SimpleQueue()
        self.by_name: dict[str, Watched] = {}
        # A cluster whose credentials cannot be used, at the version that it had then.
        self._unusable: dict[str, int] = {}
        self._look_at = self._again_at = self._quotas_at = 0.0

    def step(self) -> None:
        """Take one thing that was heard, or wait for it a while; and look after the clusters now and then."""
        if time.monotonic() >= self._look_at:
            self._look()
            for watched in self.by_name.values():
                watched.tell()
            self._look_at = time.monotonic() + LOOK_SECONDS
        if time.monotonic() >= self._again_at:
            for watched in self.by_name.values():
                watched.look_again()
            self._again_at = time.monotonic() + AGAIN_SECONDS
        if time.monotonic() >= self._quotas_at:
            for watched in self.by_name.values():
                watched.sync_quotas()
            self._quotas_at = time.monotonic() + QUOTA_SECONDS
        try:
            heard = self._heard.get(timeout=LOOK_SECONDS / 2)
        except queue.Empty:
            return
        # Of one that was stopped meanwhile nothing more is done.
        if (found := self.by_name.get(heard.cluster)) is not None:
            found.take(heard)

    def stop(self) -> None:
        """Watch nothing any more."""
        for watched in self.by_name.values():
            watched.stop()
        self.by_name.clear()

    def _look(self) -> None:
        rows = {row.name: row for row in Cluster.objects.filter(enabled=True).select_related("pool")}
        for name, watched in list(self.by_name.items()):
            if name not in rows or rows[name].version != watched.version:
                watched.stop()
                del self.by_name[name]
        for name, row in rows.items():
            if name not in self.by_name and self._unusable.get(name) != row.version:
                self._begin(row)

    def _begin(self, row: Cluster) -> None:
        try:
            watched = Watched(row, put=self._heard.put)
        except Exception as error:  # noqa: BLE001 - the library raises whatever it finds wrong with credentials
            logger.warning("cluster %s cannot be reached: %s", row.name, error)
            self._unusable[row.name] = row.version
            Cluster.objects.filter(pk=row.pk).update(state="unreachable", state_reason=str(error)[:2000])
            return
        self.by_name[row.name] = watched
        watched.start()
