"""Controller of SharePods: claim, pod, status. Level-triggered: every pass begins with the present state.

A SharePod that is gone, or whose pod has ended, releases its share, even if it was removed while no controller ran. A
removed pod is created again on its GPU. A pod whose claim was requeued or moved is deleted, and created again at the
claim's place.
"""

import json
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

from django.db import DataError

from apps.clusters.formats import kubeshare, pods
from apps.clusters.formats.asks import Ask, Unreadable
from apps.clusters.importing.reading import list_objects
from apps.clusters.kube.client import Client, Refused, Unreachable
from apps.clusters.models import Cluster, SharePod
from apps.clusters.sharepods import claims, manifests
from apps.clusters.sharepods.definition import PATH
from apps.scheduling.models import ClaimState
from gpucloud.errors import GpucloudError

logger = logging.getLogger(__name__)

Thing = Mapping[str, Any]
MISSING, CONFLICT = 404, 409
# The spec of a SharePod has no schema: lists, mappings and names may have any type.
MALFORMED = (AttributeError, IndexError, KeyError, TypeError, ValueError)


class SharePods:
    """Controller of one cluster's SharePods."""

    def __init__(self, cluster: Cluster, client: Client) -> None:
        self._cluster, self._client = cluster, client

    def reconcile_all(self) -> None:
        """Reconcile all SharePods once, from lists. Raises Unreachable, Refused if the lists fail."""
        things = list_objects(self._client, f"{PATH}/sharepods", optional=True)
        self.reconcile(things, list_objects(self._client, "/api/v1/pods", labelSelector=manifests.LABEL))

    def reconcile(self, things: Iterable[Thing], found: Iterable[Thing]) -> None:
        """Reconcile these SharePods of the cluster with all pods that have our label. Raises Unreachable."""
        # Anyone can write the label, in any namespace: the pod of a SharePod has its name too.
        by_owner = {(pods.labels(pod)[manifests.LABEL], pods.name_of(pod)): pod for pod in found}
        live = self._cluster.sharepods.filter(ended_at=None).select_related("claim__tenant", "claim__pool", "cluster")
        rows = {row.uid: row for row in live}
        for thing in sorted(things, key=lambda thing: thing["metadata"]["creationTimestamp"]):
            uid = thing["metadata"]["uid"]
            try:
                self._reconcile(thing, by_owner.get((uid, pods.name_of(thing))), rows.pop(uid, None))
            except Unreachable:
                # Every other SharePod would wait for the same timeout.
                raise
            except GpucloudError as error:
                logger.warning("SharePod %s: %s", pods.name_of(thing), error.detail)
        for uid, row in rows.items():
            # The watch may be behind: during a handover another controller creates claims too.
            if not self._is_there(row):
                self._end(row, by_owner.get((uid, f"{row.namespace}/{row.name}")), "its SharePod is gone")

    def _is_there(self, row: SharePod) -> bool:
        """Return True if the SharePod exists now, by a live read. Raises Unreachable, Refused."""
        thing = self._client.find(f"{PATH}/namespaces/{row.namespace}/sharepods/{row.name}")
        return thing is not None and thing["metadata"].get("uid") == row.uid

    def _reconcile(self, thing: Thing, pod: Thing | None, row: SharePod | None) -> None:
        if thing["metadata"].get("deletionTimestamp"):
            if row is not None:
                self._end(row, pod, "its SharePod is being removed")
            return
        try:
            phase, message, row, pod = self._bring_up(thing, pod, row)
        except claims.Quicker as error:
            logger.info("SharePod %s: %s", pods.name_of(thing), error.detail)
            return
        except GpucloudError as error:
            phase, message = "Failed" if isinstance(error, Unreadable) else "Pending", error.detail
        except MALFORMED:
            logger.info("SharePod %s is malformed", pods.name_of(thing), exc_info=True)
            phase, message = "Failed", "Its spec is not a pod's: every container needs a name and an image."
        except DataError:
            logger.info("SharePod %s cannot be stored", pods.name_of(thing), exc_info=True)
            phase, message = "Failed", "One of its values is too long, or has invalid characters."
        self._tell(thing, manifests.status_of(pod, claims.place_of(row) if row else None, phase=phase, message=message))

    def _bring_up(
        self, thing: Thing, pod: Thing | None, row: SharePod | None
    ) -> tuple[str, str, SharePod | None, Thing | None]:
        """Bring claim and pod to the SharePod's spec; return phase, message, and both afterwards.

        1. End the claim of an ended pod.
        2. Create a missing or released claim, or resize it to the annotations.
        3. Delete a pod whose claim has moved.
        4. Wait while the claim has no place.
        5. Create a missing pod at the claim's place, and record it.
        """
        if pod is not None and not pods.is_live(pod):
            if row is not None:
                claims.end(row, "its pod has ended")
            return str(pod["status"]["phase"]), "", row, pod
        ask = _ask(thing)
        if row is None:
            if SharePod.objects.filter(cluster=self._cluster, uid=thing["metadata"]["uid"]).exists():
                return "Succeeded", "Its share was released.", None, pod
            row = claims.make(cluster=self._cluster, thing=thing, ask=ask, labels=self._namespace(thing))
        if row.claim.state == ClaimState.RELEASED:
            row = claims.make_again(row, thing=thing, ask=ask, labels=self._namespace(thing))
        claims.follow(row, ask)
        place = claims.place_of(row)
        if pod is not None and claims.is_elsewhere(row, pod, place):
            claims.detach_pod(row, pod)
            self._remove(pod)
            return "Pending", "Its share has moved or waits: its previous pod must end first.", row, pod
        if place is None:
            return "Pending", "; ".join(reason["detail"] for reason in row.claim.reasons), row, pod
        if pod is None:
            made = manifests.pod_of(thing, ask, place, claim=str(row.claim.uid), at_ns=time.time_ns())
            pod = self._post_pod(made)
        claims.note_pod(row, pod)
        return str((pod.get("status") or {}).get("phase") or "Pending"), "", row, pod

    def _post_pod(self, pod: Thing) -> Thing:
        """Create the pod. Raises Refused: by a quota of the namespace, or because another pod has the name."""
        namespace = pod["metadata"]["namespace"]
        try:
            made: Thing = json.loads(self._client.post(f"/api/v1/namespaces/{namespace}/pods", pod))
        except Refused as error:
            if error.status == CONFLICT:
                there = self._client.get(f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}")
                if pods.labels(there).get(manifests.LABEL) == pods.labels(pod)[manifests.LABEL]:
                    return there
            raise
        return made

    def _namespace(self, thing: Thing) -> Mapping[str, str]:
        return pods.labels(self._client.get(f"/api/v1/namespaces/{thing['metadata']['namespace']}"))

    def _end(self, row: SharePod, pod: Thing | None, why: str) -> None:
        claims.end(row, why)
        if pod is not None:
            # The garbage collector would do it later.
            self._remove(pod)

    def _remove(self, pod: Thing) -> None:
        """Delete the pod unless it is being deleted. Repeatable."""
        meta = pod["metadata"]
        if meta.get("deletionTimestamp"):
            return
        try:
            # The watch may be behind, and the name another pod's since.
            self._client.delete(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}", uid=meta["uid"])
        except Refused as error:
            if error.status not in (MISSING, CONFLICT):
                raise

    def _tell(self, thing: Thing, status: Mapping[str, Any]) -> None:
        """Write the status if it differs."""
        now = thing.get("status") or {}
        if all(now.get(key) == value for key, value in status.items()):
            return
        meta = thing["metadata"]
        path = f"{PATH}/namespaces/{meta['namespace']}/sharepods/{meta['name']}/status"
        self._client.patch(path, {"status": dict(status)})


def _ask(thing: Thing) -> Ask:
    """Return the SharePod's request. Raises Unreadable."""
    if not pods.containers(thing):
        raise Unreadable(f"{pods.name_of(thing)}: its spec has no containers; it is a pod's spec.")
    found = kubeshare.asks(thing)
    if not found:
        raise Unreadable(
            f"{pods.name_of(thing)} asks for no share: give {kubeshare.V1_PREFIX}gpu_request, or make a Pod."
        )
    return found[0]
