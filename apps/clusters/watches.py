"""A thread for each cluster, so that one that hangs holds up no other.

Each has its own connection to the database. A thread that fails ends, and is begun anew a moment later, from a new list
of everything.
"""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from django.db import InterfaceError, OperationalError, connection

from apps.clusters.kube.client import Client
from apps.clusters.models import Cluster, ClusterState
from apps.clusters.services.clusters import kubeconfig_of

logger = logging.getLogger(__name__)

# What a thread is given to end. One that waits for its API server is left behind: it ends by itself.
END_SECONDS = 5.0


class Watch(ABC):
    """One cluster's thread. Who inherits says in `step` what it does, again and again, each time within seconds."""

    def __init__(self, cluster: Cluster) -> None:
        """Raises SealBroken, and what the client library raises of credentials."""
        self.cluster, self.version = cluster, cluster.version
        self.client = Client(kubeconfig_of(cluster))
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"cluster-{cluster.name}", daemon=True)

    @abstractmethod
    def step(self) -> None:
        """Once."""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the present step."""
        self._stopped.set()

    def join(self, seconds: float) -> None:
        """Wait for the end, so long at most."""
        self._thread.join(timeout=seconds)

    @property
    def has_ended(self) -> bool:
        """Whether it has ended."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                self.step()
        except (InterfaceError, OperationalError) as error:
            logger.warning("cluster %s: database session lost, beginning anew: %s", self.cluster.name, error)
        except Exception:
            logger.exception("cluster %s: beginning anew", self.cluster.name)
        finally:
            self.stop()
            connection.close()


class Watches:
    """All enabled clusters' threads, by name."""

    def __init__(self, begin: Callable[[Cluster], Watch]) -> None:
        self._begin = begin
        self.by_name: dict[str, Watch] = {}
        # A cluster whose credentials cannot be used, at the version that it had then.
        self._unusable: dict[str, int] = {}

    def refresh(self) -> None:
        """Begin with new clusters, and anew with changed ones and with those whose thread has failed."""
        rows = {row.name: row for row in Cluster.objects.filter(enabled=True).select_related("pool")}
        for name, watch in list(self.by_name.items()):
            if name not in rows or rows[name].version != watch.version or watch.has_ended:
                watch.stop()
                del self.by_name[name]
        for name, row in rows.items():
            if name not in self.by_name and self._unusable.get(name) != row.version:
                self._add(row)

    def stop(self) -> None:
        """Watch nothing any more."""
        deadline = time.monotonic() + END_SECONDS
        for watch in self.by_name.values():
            watch.stop()
        for watch in self.by_name.values():
            watch.join(max(0.0, deadline - time.monotonic()))
        self.by_name.clear()

    def _add(self, row: Cluster) -> None:
        try:
            watch = self._begin(row)
        except Exception as error:  # noqa: BLE001 - the library raises whatever it finds wrong with credentials
            logger.warning("cluster %s cannot be reached: %s", row.name, error)
            self._unusable[row.name] = row.version
            Cluster.objects.filter(pk=row.pk).update(state=ClusterState.UNREACHABLE, state_reason=str(error)[:2000])
            return
        self.by_name[row.name] = watch
        watch.start()
