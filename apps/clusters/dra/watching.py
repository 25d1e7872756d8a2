"""Watch of one cluster's ResourceClaims and of its own ResourceSlices."""

import logging
import queue
import time
from collections.abc import Mapping
from typing import Any

from django.db import InterfaceError, OperationalError

from agent.wire import DRA_DRIVER as DRIVER
from apps.clusters.dra import batches, ledger, requests, resizing, slices
from apps.clusters.dra.evicting import evict
from apps.clusters.dra.publishing import Publisher
from apps.clusters.kube.reflector import Kind, Observation, Reflector
from apps.clusters.models import Cluster, DeviceClaim
from apps.clusters.watches import Watch
from gpucloud.errors import Busy, GpucloudError

logger = logging.getLogger(__name__)

# Optional: a cluster before Kubernetes 1.34 has none.
CLAIMS = Kind("resourceclaims", f"/apis/{slices.GROUP}/resourceclaims", dict[str, Any], optional=True)
SLICES = Kind("resourceslices", slices.PATH, dict[str, Any], {"fieldSelector": f"spec.driver={DRIVER}"}, optional=True)
# Intervals: of reading what the ledger has left and of reporting statuses; of retries and evictions.
PUBLISH_SECONDS, RETRY_SECONDS = 0.5, 5.0
PRUNE_SECONDS = 3600.0
# As many changes are applied before periodic work is done.
MOST_CHANGED = 100
# So long after changes were applied, those that come are gathered and placed together. The first of a burst does not
# wait.
GATHER_SECONDS = 0.2


class DeviceWatch(Watch):
    """Watch of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        """Connect to the cluster. Raises SealBroken and the client library's errors about credentials."""
        super().__init__(cluster)
        self._publisher = Publisher(cluster, self.client)
        self._teller = resizing.Teller(cluster, self.client)
        self._heard: queue.SimpleQueue[Observation] = queue.SimpleQueue()
        # ResourceClaims by uid; None before they were listed.
        self._there: dict[str, dict[str, Any]] | None = None
        self._every = {self.publish: PUBLISH_SECONDS, self.tell: PUBLISH_SECONDS, self.retry: RETRY_SECONDS}
        self._due = dict.fromkeys(self._every, 0.0)
        self._gather_until = 0.0
        # The newest state of changed ones, by uid, which is not applied yet.
        self._changed: dict[str, dict[str, Any]] = {}
        # False until the cluster has shown that it has such objects.
        self._served = False
        self._evicted: set[str] = set()
        # Released claims whose pods were evicted.
        self._released: set[int] = set()
        self._prune_due = 0.0
        # The last row that was tried again.
        self._tried = 0
        self._reflectors = [Reflector(self.client, kind, see=self.hear, fail=self._fail) for kind in (CLAIMS, SLICES)]

    def hear(self, seen: Observation) -> None:
        """Queue an observation. Callable from any thread."""
        self._heard.put(seen)

    def step(self) -> None:
        """Apply queued observations, waiting a moment for the first; then do periodic work that is due."""
        try:
            self.take(self._heard.get(timeout=PUBLISH_SECONDS))
            while not self._stopped.is_set() and len(self._changed) < MOST_CHANGED:
                self.take(self._heard.get(timeout=max(0.0, self._gather_until - time.monotonic())))
        except queue.Empty:
            pass
        self._apply_changes()
        for does, seconds in self._every.items():
            if time.monotonic() >= self._due[does] and not self._stopped.is_set():
                self._due[does] = time.monotonic() + seconds
                self._do(does)

    def take(self, seen: Observation) -> None:
        """Apply one observation."""
        # The list of a kind that does not exist has no version. It says nothing of what ran before.
        if seen.whole and not seen.version:
            return
        self._served = self._served or seen.whole
        if seen.kind == SLICES.name:
            self._take_slices(seen)
        else:
            self._take_claims(seen)

    def withdraw(self) -> None:
        """Remove the slices and the DeviceClass: nobody would follow what is allocated. Raises Unreachable, Refused."""
        self._publisher.withdraw(self.client)

    def publish(self) -> None:
        """Write the slices that changed."""
        self._publisher.publish()

    def tell(self) -> None:
        """Write changed statuses into their ResourceClaims."""
        self._teller.tell(self._there or {})

    def retry(self) -> None:
        """Try again what could not be charged, placed or resized; end what was never created; evict lost pods."""
        if self._there is None:
            return
        self._try_again(self._there)
        for row in ledger.find_unseen(self.cluster, self._there):
            if not self._is_there(row):
                ledger.end(cluster=self.cluster, uid=row.uid, why="its ResourceClaim was not created")
        self._evicted = evict(
            cluster=self.cluster, api=self.client, there=self._there, ending=self._evicted, released=self._released
        )
        ledger.release_unused(self.cluster)
        if time.monotonic() >= self._prune_due:
            self._prune_due = time.monotonic() + PRUNE_SECONDS
            ledger.prune(self.cluster)

    def _try_again(self, there: Mapping[str, requests.Thing]) -> None:
        """Follow those with problems or refusals once more, as many as there is time for; the others come next."""
        end = time.monotonic() + PUBLISH_SECONDS
        troubled = DeviceClaim.objects.live().filter(cluster=self.cluster).exclude(problem="")
        rows = (troubled | resizing.find_refused(self.cluster)).filter(pk__gt=self._tried)
        for pk, uid in rows.order_by("pk").values_list("pk", "uid"):
            if uid in there:
                self._follow(there[uid])
            if time.monotonic() >= end:
                self._tried = pk
                return
        self._tried = 0

    def _take_claims(self, seen: Observation) -> None:
        by_uid = {str(item["metadata"]["uid"]): item for item in seen.objects}
        if seen.whole:
            self._there = by_uid
            for row in DeviceClaim.objects.live().filter(cluster=self.cluster, seen=True).exclude(uid__in=by_uid):
                if not self._is_there(row):
                    ledger.end(cluster=self.cluster, uid=row.uid, why="its ResourceClaim no longer existed")
        there = self._there if self._there is not None else {}
        for uid, item in by_uid.items():
            if seen.gone:
                there.pop(uid, None)
                self._changed.pop(uid, None)
                ledger.end(cluster=self.cluster, uid=uid)
            else:
                there[uid] = self._changed[uid] = item

    def _apply_changes(self) -> None:
        """Follow the newest state of each changed ResourceClaim: most are only to be placed, and are so together."""
        changed, self._changed = self._changed, {}
        if not changed:
            return
        try:
            placed = batches.place(cluster=self.cluster, things=changed.values())
        except (InterfaceError, OperationalError):
            raise
        except Exception:
            logger.exception("%d ResourceClaims are followed one by one", len(changed))
            placed = set()
        for uid, item in changed.items():
            if self._stopped.is_set():
                return
            if uid not in placed or requests.resize_words(item):
                self._follow(item)
        self._gather_until = time.monotonic() + GATHER_SECONDS

    def _follow(self, thing: requests.Thing) -> None:
        namespace = str(thing["metadata"]["namespace"])

        def labels() -> Mapping[str, str]:
            return self.client.labels_of(namespace)

        try:
            row = ledger.follow(cluster=self.cluster, thing=thing, labels=labels)
            if row is not None:
                resizing.follow(row, thing, labels=labels)
        except Busy as error:
            logger.info("ResourceClaim %s: %s", thing["metadata"]["name"], error.detail)
        except (InterfaceError, OperationalError):
            raise
        except Exception:
            # One that cannot be read or stored must not end the watch over all others, again and again.
            logger.exception("ResourceClaim %s/%s is not followed", namespace, thing["metadata"]["name"])

    def _take_slices(self, seen: Observation) -> None:
        if seen.whole:
            self._publisher.forget_others({_name_of(item) for item in seen.objects})
            ours = [item for item in seen.objects if slices.is_of_pool(item, self.cluster.pool.name)]
            self._publisher.inherit({_name_of(item) for item in ours})
        for item in seen.objects:
            self._publisher.compare(_name_of(item), str(item["metadata"]["resourceVersion"]))

    def _is_there(self, row: DeviceClaim) -> bool:
        """Return True if the ResourceClaim exists now, by a live read. Raises Unreachable, Refused."""
        found = self.client.find(f"/apis/{slices.GROUP}/namespaces/{row.namespace}/resourceclaims/{row.name}")
        return found is not None and found["metadata"]["uid"] == row.uid

    def _do(self, does: Any) -> None:
        if not self._served:
            return
        try:
            does()
        except GpucloudError as error:
            logger.warning("devices of cluster %s: %s", self.cluster.name, error.detail)
            self._due[does] += max(RETRY_SECONDS, getattr(error, "pause_seconds", 0.0))

    def _fail(self, kind: str, text: str) -> None:
        logger.info("cluster %s: %s: %s", self.cluster.name, kind, text)


def _name_of(item: requests.Thing) -> str:
    return str(item["metadata"]["name"])
