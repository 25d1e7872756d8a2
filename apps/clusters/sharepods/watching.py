"""Watch of one cluster's SharePods and their pods. Nothing is listed again while the watches last.

The database is polled every two seconds for the claims' states; events of the cluster are handled at once.
"""

import logging
import queue
from typing import Any

from apps.clusters.kube.reflector import Kind, Observation, Reflector
from apps.clusters.models import Cluster
from apps.clusters.sharepods import manifests
from apps.clusters.sharepods.controller import SharePods
from apps.clusters.sharepods.definition import PATH
from apps.clusters.watches import Watch
from gpucloud.errors import GpucloudError

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
# Optional: a cluster without the kind has none.
SHAREPODS = Kind("sharepods", f"{PATH}/sharepods", dict[str, Any], optional=True)
# Includes ended pods: the SharePod's status reports how they ended.
THEIR_PODS = Kind("pods", "/api/v1/pods", dict[str, Any], {"labelSelector": manifests.LABEL})


class WatchedSharePods(Watch):
    """Watch of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        """Connect to the cluster. Raises SealBroken and the client library's errors about credentials."""
        super().__init__(cluster)
        self._controller = SharePods(cluster, self.client)
        self._heard: queue.SimpleQueue[Observation] = queue.SimpleQueue()
        # By kind, then by uid; a kind is present once it was listed.
        self._there: dict[str, dict[str, dict[str, Any]]] = {}
        self._reflectors = [
            Reflector(self.client, kind, see=self.hear, fail=self._fail) for kind in (SHAREPODS, THEIR_PODS)
        ]

    def hear(self, seen: Observation) -> None:
        """Queue an observation. Callable from any thread."""
        self._heard.put(seen)

    def step(self) -> None:
        """Apply queued observations, waiting LOOK_SECONDS for the first, and reconcile everything."""
        try:
            self.take(self._heard.get(timeout=LOOK_SECONDS))
            while not self._heard.empty():
                self.take(self._heard.get())
        except queue.Empty:
            pass
        if len(self._there) < len(self._reflectors):
            return
        try:
            self._controller.reconcile(
                list(self._there[SHAREPODS.name].values()), list(self._there[THEIR_PODS.name].values())
            )
        except GpucloudError as error:
            logger.warning("SharePods of cluster %s: %s", self.cluster.name, error.detail)

    def take(self, seen: Observation) -> None:
        """Apply one observation."""
        by_uid = {str(item["metadata"]["uid"]): item for item in seen.objects}
        if seen.whole:
            self._there[seen.kind] = by_uid
        elif seen.gone:
            for uid in by_uid:
                self._there[seen.kind].pop(uid, None)
        else:
            self._there[seen.kind].update(by_uid)

    def _fail(self, kind: str, text: str) -> None:
        logger.info("cluster %s: %s: %s", self.cluster.name, kind, text)
