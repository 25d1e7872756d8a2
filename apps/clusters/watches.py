"""Threads of the watched clusters, one each, so that a hanging cluster does not delay the others.

Each has its own connection to the database. A failed thread ends and is started again a moment later, from a new list
of everything.
"""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from django.db import InterfaceError, OperationalError, connection

from apps.clusters.kube.client import Client
from apps.clusters.kube.reflector import Reflector
from apps.clusters.models import Cluster, ClusterState
from apps.clusters.services.clusters import kubeconfig_of

logger = logging.getLogger(__name__)

# Time for a thread to end. One that waits for its API server is abandoned: it ends by itself.
END_SECONDS = 5.0
# A step ends within seconds; each of its requests is given up after ten. After so long without an end it hangs.
HANGING_SECONDS = 300.0


class Watch(ABC):
    """Thread of one cluster, and its reflectors, which queue what they observe.

    Subclasses implement `step`, which runs repeatedly, within seconds each time.
    """

    def __init__(self, cluster: Cluster) -> None:
        """Connect to the cluster. Raises SealBroken and the client library's errors about credentials."""
        self.cluster, self.version = cluster, cluster.version
        self.client = Client(kubeconfig_of(cluster))
        self._reflectors: list[Reflector] = []
        self._stopped = threading.Event()
        self._leaves = False
        self._moved_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"cluster-{cluster.name}", daemon=True)

    @abstractmethod
    def step(self) -> None:
        """Do one step."""

    def withdraw(self) -> None:  # noqa: B027 - most write nothing that must be removed
        """Remove what must not stay in a cluster that is watched no longer. Raises whatever it wants."""

    def leave(self) -> None:
        """Stop, and withdraw from the cluster at the end of the thread."""
        self._leaves = True
        self.stop()

    def start(self) -> None:
        """Start the reflectors and the thread."""
        for reflector in self._reflectors:
            reflector.start()
        self._thread.start()

    def stop(self) -> None:
        """Stop the reflectors; end after the present step."""
        for reflector in self._reflectors:
            reflector.stop()
        self._stopped.set()

    def join(self, seconds: float) -> None:
        """Wait at most so many seconds for the end."""
        self._thread.join(timeout=seconds)

    @property
    def has_ended(self) -> bool:
        """True once the thread has ended."""
        return not self._thread.is_alive()

    @property
    def still_seconds(self) -> float:
        """Time since the present step began, or since a longer one last moved."""
        return time.monotonic() - self._moved_at

    def move(self) -> None:
        """Record that the present step moves."""
        self._moved_at = time.monotonic()

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                self.move()
                self.step()
        except (InterfaceError, OperationalError) as error:
            logger.warning("cluster %s: database session lost, restarting: %s", self.cluster.name, error)
        except Exception:
            logger.exception("cluster %s: restarting", self.cluster.name)
        finally:
            self.stop()
            if self._leaves:
                self._withdraw()
            connection.close()

    def _withdraw(self) -> None:
        try:
            self.withdraw()
        except Exception as error:  # noqa: BLE001 - a cluster that is gone, or an account without rights by now
            logger.warning("cluster %s is left with what was written there: %s", self.cluster.name, error)


class Watches:
    """Threads of all enabled clusters, by name."""

    def __init__(self, begin: Callable[[Cluster], Watch]) -> None:
        self._begin = begin
        self.by_name: dict[str, Watch] = {}
        # Versions of clusters with unusable credentials.
        self._unusable: dict[str, int] = {}

    def refresh(self) -> None:
        """Start new clusters; restart changed ones and those whose thread has failed."""
        rows = {row.name: row for row in Cluster.objects.filter(enabled=True).select_related("pool")}
        for name, watch in list(self.by_name.items()):
            if name not in rows:
                watch.leave()
                del self.by_name[name]
            elif rows[name].version != watch.version or watch.has_ended:
                watch.stop()
                del self.by_name[name]
        for name, row in rows.items():
            if name not in self.by_name and self._unusable.get(name) != row.version:
                self._add(row)

    def find_hanging(self) -> list[str]:
        """Return the names of clusters whose thread does not move."""
        return [
            name
            for name, watch in self.by_name.items()
            if watch.still_seconds > HANGING_SECONDS and not watch.has_ended
        ]

    def ask_to_stop(self) -> None:
        """Let all threads end after their present step."""
        for watch in self.by_name.values():
            watch.stop()

    def stop(self) -> None:
        """Stop all threads, and wait for their end."""
        self.ask_to_stop()
        deadline = time.monotonic() + END_SECONDS
        for watch in self.by_name.values():
            watch.join(max(0.0, deadline - time.monotonic()))
        self.by_name.clear()

    def _add(self, row: Cluster) -> None:
        try:
            watch = self._begin(row)
        except Exception as error:  # noqa: BLE001 - the library raises whatever it finds wrong with credentials
            logger.warning("cluster %s could not be reached: %s", row.name, error)
            self._unusable[row.name] = row.version
            Cluster.objects.filter(pk=row.pk).update(state=ClusterState.UNREACHABLE, state_reason=str(error)[:2000])
            return
        self.by_name[row.name] = watch
        watch.start()
