"""One cluster's SharePods and their pods as they are watched. Nothing is listed again while the watches last.

Where a claim stands is asked of the database every two seconds; what happens in the cluster is acted on at once.
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
# A cluster may not know the kind: then there are none.
SHAREPODS = Kind("sharepods", f"{PATH}/sharepods", dict[str, Any], optional=True)
# Also those that are over: how they ended is in the SharePod's status.
THEIR_PODS = Kind("pods", "/api/v1/pods", dict[str, Any], {"labelSelector": manifests.LABEL})


class WatchedSharePods(Watch):
    """One cluster's."""

    def __init__(self, cluster: Cluster) -> None:
        """Raises SealBroken, and what the client library raises of credentials."""
        super().__init__(cluster)
        self._controller = SharePods(cluster, self.client)
        self._heard: queue.SimpleQueue[Observation] = queue.SimpleQueue()
        # By kind, then by uid; a kind is there once all of it was heard of.
        self._there: dict[str, dict[str, dict[str, Any]]] = {}
        self._reflectors = [
            Reflector(self.client, kind, see=self.hear, fail=self._fail) for kind in (SHAREPODS, THEIR_PODS)
        ]

    def start(self) -> None:
        """Begin to listen."""
        for reflector in self._reflectors:
            reflector.start()
        super().start()

    def stop(self) -> None:
        """Listen no longer."""
        for reflector in self._reflectors:
            reflector.stop()
        super().stop()

    def hear(self, seen: Observation) -> None:
        """From any thread."""
        self._heard.put(seen)

    def step(self) -> None:
        """Take in what was heard, waiting for it a while, and bring everything to what is wanted."""
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
        """Keep it."""
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
