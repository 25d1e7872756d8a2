"""Watch of one cluster: its namespaces, its live pods, and pending work on them.

Reflectors queue their observations. The cluster's thread takes them, keeps the pods in memory, and does periodic work;
workers record the pods (`recording`).
"""

import logging
import queue
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.utils import timezone

from apps.clusters.formats import pods
from apps.clusters.importing import following
from apps.clusters.kube.client import Refused, Unreachable
from apps.clusters.kube.reflector import KEPT_PODS, NAMESPACES, Observation, Reflector
from apps.clusters.models import Cluster, ClusterState, PodClaim
from apps.clusters.pod_queue import PodQueue
from apps.clusters.recording import Recorder
from apps.clusters.services import evicting, quota_sync, resizing
from apps.clusters.watches import Watch
from gpucloud.errors import Busy

logger = logging.getLogger(__name__)


# Interval of reporting resizes to their pods.
TELL_SECONDS = 1.0
# Interval of evictions: claims may wait for the room.
EVICT_SECONDS = 2.0
# Interval of retries for unrecorded pods: a tenant's quota may have room by now.
AGAIN_SECONDS = 10.0
# Interval of quota syncs. Each costs one list, and a few queries for each bound namespace.
QUOTA_SECONDS = 5.0
# Interval of writing when the cluster was last heard.
AGE_SECONDS = 10.0


class Watched(Watch):
    """Watch of one cluster in one version; a changed cluster gets a new one."""

    def __init__(self, cluster: Cluster) -> None:
        """Connect to the cluster. Raises SealBroken and the client library's errors about credentials."""
        super().__init__(cluster)
        self._heard: queue.SimpleQueue[Observation | str] = queue.SimpleQueue()
        self._every = {
            self.tell: TELL_SECONDS,
            self.evict: EVICT_SECONDS,
            self.retry: AGAIN_SECONDS,
            self.sync_quotas: QUOTA_SECONDS,
            self.report_age: AGE_SECONDS,
        }
        self._due = dict.fromkeys(self._every, 0.0)
        self._namespaces: dict[str, Mapping[str, str]] | None = None
        self._pods: dict[str, dict[str, Any]] = {}
        self._pods_whole = False
        self._queue = PodQueue()
        self._recorder = Recorder(cluster, self._queue, labels=self._labels_of)
        # True while pods that are missing from the list are to be ended.
        self._others_due = False
        # Moments before which pods must not be evicted again, by uid: the cluster's answers named them.
        self._evict_later: dict[str, float] = {}
        # Uids of evicted pods whose end the watch may not have reported yet.
        self._evicted: set[str] = set()
        self._reflectors = [
            Reflector(
                self.client,
                kind,
                see=self.hear,
                fail=lambda kind, text: self.hear(f"{kind}: {text}"),
            )
            for kind in (NAMESPACES, KEPT_PODS)
        ]

    def start(self) -> None:
        """Start the reflectors, the recorder and the thread."""
        self._recorder.start()
        super().start()

    def stop(self) -> None:
        """Stop the reflectors, the recorder and the thread."""
        self._recorder.stop()
        super().stop()

    def join(self, seconds: float) -> None:
        """Wait at most so many seconds for the end of the thread, and as many for that of the workers."""
        super().join(seconds)
        self._recorder.join(seconds)

    @property
    def still_seconds(self) -> float:
        """Time since the present step moved, or since a worker took its present batch, whichever is longer."""
        return max(super().still_seconds, self._recorder.busy_seconds)

    def hear(self, heard: Observation | str) -> None:
        """Queue an observation, or the error of a reflector. Callable from any thread."""
        self._heard.put(heard)

    def step(self) -> None:
        """Do periodic work that is due; then apply queued observations, waiting for the first a moment."""
        self._recorder.raise_failure()
        for does, seconds in self._every.items():
            if time.monotonic() >= self._due[does]:
                self._due[does] = time.monotonic() + seconds
                does()
        try:
            self.take(self._heard.get(timeout=TELL_SECONDS / 2))
            until = time.monotonic() + TELL_SECONDS
            while not self._stopped.is_set() and time.monotonic() < until:
                self.take(self._heard.get_nowait())
        except queue.Empty:
            return

    def take(self, heard: Observation | str) -> None:
        """Apply one observation or error."""
        if isinstance(heard, str):
            self._set_state(ClusterState.UNREACHABLE, heard)
        elif heard.kind == NAMESPACES.name:
            self._take_namespaces(heard)
        else:
            self._take_pods(heard)

    def retry(self) -> None:
        """Record pods that could not be recorded before, and check whether an unreachable cluster is back."""
        if self.cluster.state == ClusterState.UNREACHABLE:
            try:
                self.client.version()
            except (Refused, Unreachable):
                return
            self._set_state(ClusterState.CONNECTED)
        if self._pods_whole:
            following.forget_promises(cluster=self.cluster, pods_there=self._pods.values())
        if self._others_due:
            self._end_others()
        rows = PodClaim.objects.live().filter(cluster=self.cluster, claim=None)
        for uid in rows.values_list("pod_uid", flat=True).distinct():
            if (pod := self._pods.get(uid)) is not None:
                self._queue.put_again(uid, pod)
        self._recorder.work_off()

    def sync_quotas(self) -> None:
        """Write tenants' quotas into their namespaces if the cluster has `sync_quotas`."""
        if not self.cluster.sync_quotas or self._namespaces is None:
            return
        try:
            quota_sync.sync(cluster=self.cluster, client=self.client, namespaces=self._namespaces)
        except (Refused, Unreachable) as error:
            logger.warning("quotas of cluster %s: %s", self.cluster.name, error.detail)
            self._due[self.sync_quotas] += getattr(error, "pause_seconds", 0.0)

    def tell(self) -> None:
        """Report changed shares to their pods."""
        try:
            resizing.tell(cluster=self.cluster, api=self.client)
        except Busy as error:
            logger.info("cluster %s: %s", self.cluster.name, error.detail)

    def evict(self) -> None:
        """Evict pods that have lost their share."""
        if not self._pods_whole:
            return
        self._evicted &= self._pods.keys()
        ending = {uid for uid, pod in self._pods.items() if pod["metadata"].get("deletionTimestamp")}
        now = time.monotonic()
        self._evict_later = {uid: at for uid, at in self._evict_later.items() if at > now and uid in self._pods}
        ending |= self._evict_later.keys()
        about: Any = {"cluster": self.cluster, "api": self.client, "later": self._evict_later}
        try:
            self._evicted |= evicting.evict(ending=ending | self._evicted, **about)
            self._evicted |= evicting.evict_unclaimed(ending=ending | self._evicted, there=self._pods, **about)
        except Busy as error:
            logger.info("cluster %s: %s", self.cluster.name, error.detail)

    def report_age(self) -> None:
        """Write when the cluster was last heard, for its page and for metrics."""
        if self.cluster.state == ClusterState.CONNECTED:
            age = max(reflector.age_seconds for reflector in self._reflectors)
            heard = timezone.now() - timedelta(seconds=age)
            Cluster.objects.filter(pk=self.cluster.pk).update(synced_at=heard)

    def _take_namespaces(self, seen: Observation) -> None:
        first = self._namespaces is None
        if seen.whole or self._namespaces is None:
            self._namespaces = {}
        for item in seen.objects:
            self._namespaces[item.metadata.name] = item.metadata.labels or {}
            if seen.gone:
                del self._namespaces[item.metadata.name]
        if first and self._pods_whole:
            self._follow_all()

    def _take_pods(self, seen: Observation) -> None:
        by_uid = {str(item["metadata"]["uid"]): item for item in seen.objects}
        if seen.whole:
            self._pods, self._pods_whole = by_uid, True
            self._queue.keep_only(by_uid)
            if self._namespaces is not None:
                self._follow_all()
            return
        for uid, item in by_uid.items():
            if seen.gone:
                self._pods.pop(uid, None)
                self._queue.put_end(uid)
            else:
                self._pods[uid] = item
                if self._namespaces is not None:
                    self._queue.put(uid, item)
        self._recorder.work_off()

    def _follow_all(self) -> None:
        for uid, pod in self._pods.items():
            self._queue.put(uid, pod)
        while not self._stopped.is_set() and not self._recorder.work_off(seconds=TELL_SECONDS):
            self._recorder.raise_failure()
            self.move()
        if self._stopped.is_set():
            # Another process leads by now, with newer knowledge.
            return
        self._end_others()
        self._set_state(ClusterState.CONNECTED)

    def _end_others(self) -> None:
        self._others_due = True
        try:
            following.end_others(cluster=self.cluster, live=self._pods, is_there=self._is_there)
            self._others_due = False
        except (Refused, Unreachable) as error:
            logger.warning("missing pods of cluster %s: %s", self.cluster.name, error.detail)

    def _is_there(self, row: PodClaim) -> bool:
        """Return True if the pod lives now, by a live read. Raises Unreachable, Refused."""
        pod = self.client.find(f"/api/v1/namespaces/{row.namespace}/pods/{row.pod}")
        return pod is not None and pod["metadata"]["uid"] == row.pod_uid and pods.is_live(pod)

    def _labels_of(self, namespace: str) -> Mapping[str, str]:
        return (self._namespaces or {}).get(namespace, {})

    def _set_state(self, state: str, why: str = "") -> None:
        values: dict[str, Any] = {"state": state, "state_reason": why[:2000]}
        if state == ClusterState.CONNECTED:
            values["synced_at"] = timezone.now()
            try:
                values["kubernetes_version"] = self.client.version()[:63]
            except (Refused, Unreachable):
                return
        elif self.cluster.state != state:
            logger.warning("cluster %s: %s", self.cluster.name, why)
        Cluster.objects.filter(pk=self.cluster.pk).update(**values)
        for name, value in values.items():
            setattr(self.cluster, name, value)
