"""Eviction of pods that have lost their share: their claims must make room, or were released.

A claim of a pod is not taken away by preemption itself. The pod is evicted rather than deleted: Kubernetes respects
disruption budgets and the pod's grace period. The claim is released when the pod has ended, like any pod's; until then
it holds its share, and claims that wait for it wait.

A claim that its owner or a rule has released is gone, and with it the pod's processes: its container would be restarted
and refused for ever.
"""

import logging
from collections.abc import Collection

from django.db.models import F, Q

from apps.clusters.models import Cluster, PodClaim
from apps.clusters.services import pod_events
from apps.clusters.services.pod_events import Api
from apps.scheduling.models import Claim, ClaimState
from apps.scheduling.services.reclaiming import preemption
from gpucloud.errors import Busy, GpucloudError

logger = logging.getLogger(__name__)

# Claims of a forgotten node are released without contact to it: what runs there is unknown, even if it returns.
SEEN = Q(claim__state=ClaimState.RELEASED, claim__released_at__gt=F("node__enrolled_at"))
RELEASED = Q(claim__pod__has_key="uid") & (Q(claim__state=ClaimState.RELEASING) | SEEN)


def evict(*, cluster: Cluster, api: Api, ending: Collection[str]) -> set[str]:
    """Evict every pod without a share; return the uids of those that end now. Raises Busy.

    `ending`: the uids of pods that end already. Refused evictions are to be requested again.
    """
    done, granted = set(ending), set[str]()
    rows = PodClaim.objects.live().filter(RELEASED | _making_room(), cluster=cluster)
    for row in rows.order_by("pk"):
        # Once per pod, whatever its number of containers.
        if row.pod_uid not in done and _evict(row, api):
            granted.add(row.pod_uid)
        done.add(row.pod_uid)
    return granted


def _making_room() -> Q:
    return Q(claim__in=preemption.due_with_their_pods())


def _evict(seen: PodClaim, api: Api) -> bool:
    # Read again: the waiting claim may have been placed during the earlier evictions.
    row = PodClaim.objects.live().filter(RELEASED | _making_room(), pk=seen.pk).select_related("claim").first()
    if row is None or row.claim is None:
        return False
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
        return False
    _say_why(row, row.claim, api)
    return True


def _say_why(row: PodClaim, claim: Claim, api: Api) -> None:
    reason, words = "Released", f"The claim {claim.uid} of container {row.container} was released."
    if claim.preempt_at is not None:
        preemption.end_with_pod(claim)
        reason, words = "Preempted", "; ".join(item["detail"] for item in claim.reasons) + "."
    try:
        pod_events.post(api, row, kind="Warning", reason=reason, words=words)
    except Busy:
        raise
    except GpucloudError as error:
        logger.info("eviction of pod %s/%s not reported: %s", row.namespace, row.pod, error.detail)
