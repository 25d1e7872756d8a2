"""Eviction of pods without a share: their claims must make room, or were released, or they never got one.

A claim of a pod is not taken away by preemption itself. The pod is evicted rather than deleted: Kubernetes respects
disruption budgets and the pod's grace period. The claim is released when the pod has ended, like any pod's; until then
it holds its share, and claims that wait for it wait.

A claim that its owner or a rule has released is gone, and with it the pod's processes: its container would be restarted
and refused for ever.

A pod that Kubernetes has bound and that gets no claim waits for it, with its GPU's part. After POD_CLAIM_SECONDS it is
evicted, with the ledger's reason in its event, so that its controller's next pod is placed anew. Only pods of nodes
with an agent that have not started are evicted: elsewhere a pod runs without a claim.
"""

import logging
import time
from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db.models import F, Q
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from apps.clusters.formats import Unreadable, format_of, pods
from apps.clusters.kube.client import Refused
from apps.clusters.models import Cluster, PodClaim
from apps.clusters.services import pod_events
from apps.clusters.services.pod_events import Api, PodNames
from apps.nodes.models import Node
from apps.scheduling.models import Claim, ClaimState
from apps.scheduling.services.reclaiming import preemption
from gpucloud.errors import Busy, GpucloudError

logger = logging.getLogger(__name__)

Later = dict[str, float]

# Claims of a forgotten node are released without contact to it: what runs there is unknown, even if it returns.
SEEN = Q(claim__state=ClaimState.RELEASED, claim__released_at__gt=F("node__enrolled_at"))
RELEASED = Q(claim__pod__has_key="uid") & (Q(claim__state=ClaimState.RELEASING) | SEEN)


def evict_unclaimed(
    *, cluster: Cluster, api: Api, ending: Collection[str], there: Mapping[str, pods.Pod], later: Later | None = None
) -> set[str]:
    """Evict every pod that has waited too long for its claim; return the uids of those that end now. Raises Busy.

    `ending`: the uids of pods that end already. `there`: the cluster's live pods by uid. `later` as in `evict`.
    """
    done, granted = set(ending), set[str]()
    for row in _unclaimed(cluster):
        pod = there.get(row.pod_uid)
        if pod is None or row.pod_uid in done or _has_started(pod, row.container) or not _was_bound(pod):
            continue
        if not _is_due_a_claim(pod):
            continue
        done.add(row.pod_uid)
        if request_eviction(row, api, later):
            granted.add(row.pod_uid)
            report(row, api, "NoClaim", f"{row.problem} It had no claim {settings.POD_CLAIM_SECONDS} s after binding.")
    return granted


def _unclaimed(cluster: Cluster) -> Iterator[PodClaim]:
    """Yield the containers on nodes with an agent that have had no claim for too long."""
    if not settings.POD_CLAIM_SECONDS:
        return
    since = timezone.now() - timedelta(seconds=settings.POD_CLAIM_SECONDS)
    rows = PodClaim.objects.live().filter(cluster=cluster, claim=None, created_at__lt=since).exclude(problem="")
    if found := list(rows.order_by("pk")):
        nodes = Node.objects.filter(pool=cluster.pool, enrolled_at__isnull=False).values_list("kubernetes_node", "name")
        names = {theirs or ours for theirs, ours in nodes}
        yield from (row for row in found if row.node_name in names)


def _is_due_a_claim(pod: pods.Pod) -> bool:
    """Return True if the watch gives pods of this format claims; those of others run without one until an import."""
    try:
        used = format_of(pod)
    except Unreadable:
        return False
    return used is not None and not used.IMPORTED_ONLY


def _was_bound(pod: pods.Pod) -> bool:
    """Return True if the pod was bound so long ago, as far as its status says when."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    at = next((item.get("lastTransitionTime") for item in conditions if item.get("type") == "PodScheduled"), None)
    try:
        moment = parse_datetime(str(at)) if at else None
        late = moment is None or moment < timezone.now() - timedelta(seconds=settings.POD_CLAIM_SECONDS)
    except (TypeError, ValueError):  # not as Kubernetes writes it
        late = True
    return bool(pods.node_of(pod)) and late


def _has_started(pod: pods.Pod, container: str) -> bool:
    """Return True if the pod's container runs or ran: its processes would be lost."""
    status: Mapping[str, Any] = pod.get("status") or {}
    if status.get("phase") != "Pending":
        return True
    every = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    mine = [item for item in every if item.get("name") == container]
    return any("waiting" not in (item.get("state") or {"waiting": {}}) or item.get("lastState") for item in mine)


def evict(*, cluster: Cluster, api: Api, ending: Collection[str], later: Later | None = None) -> set[str]:
    """Evict every pod without a share; return the uids of those that end now. Raises Busy.

    `ending`: the uids of pods that end already. Refused evictions are to be requested again; `later` gets the moments
    before which the cluster does not want that (monotonic seconds, by uid).
    """
    done, granted = set(ending), set[str]()
    rows = PodClaim.objects.live().filter(RELEASED | _making_room(), cluster=cluster)
    for row in rows.order_by("pk"):
        # Once per pod, whatever its number of containers.
        if row.pod_uid not in done and _evict(row, api, later):
            granted.add(row.pod_uid)
        done.add(row.pod_uid)
    return granted


def _making_room() -> Q:
    return Q(claim__in=preemption.due_with_their_pods())


def _evict(seen: PodClaim, api: Api, later: Later | None) -> bool:
    # Read again: the waiting claim may have been placed during the earlier evictions.
    row = PodClaim.objects.live().filter(RELEASED | _making_room(), pk=seen.pk).select_related("claim").first()
    if row is None or row.claim is None or not request_eviction(row, api, later):
        return False
    _say_why(row, row.claim, api)
    return True


def request_eviction(row: PodNames, api: Api, later: Later | None = None) -> bool:
    """Request the eviction; return False if the cluster refuses it. Raises Busy."""
    # The uid protects another pod of that name.
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": row.pod, "namespace": row.namespace},
        "deleteOptions": {"preconditions": {"uid": row.pod_uid}},
    }
    try:
        api.post(f"/api/v1/namespaces/{row.namespace}/pods/{row.pod}/eviction", body)
    except Busy:
        raise
    except GpucloudError as error:
        # A disruption budget, a missing permission, or a pod that has gone, which the watch will report.
        logger.info("pod %s/%s not evicted: %s", row.namespace, row.pod, error.detail)
        if later is not None and isinstance(error, Refused) and error.pause_seconds:
            later[row.pod_uid] = time.monotonic() + error.pause_seconds
        return False
    return True


def _say_why(row: PodClaim, claim: Claim, api: Api) -> None:
    reason, words = "Released", f"The claim {claim.uid} of container {row.container} was released."
    if claim.preempt_at is not None:
        preemption.end_with_pod(claim)
        reason, words = "Preempted", "; ".join(item["detail"] for item in claim.reasons) + "."
    report(row, api, reason, words)


def report(row: PodNames, api: Api, reason: str, words: str) -> None:
    """Post a warning of the pod's eviction. Raises Busy."""
    try:
        pod_events.post(api, row, kind="Warning", reason=reason, words=words)
    except Busy:
        raise
    except GpucloudError as error:
        logger.info("eviction of pod %s/%s not reported: %s", row.namespace, row.pod, error.detail)
