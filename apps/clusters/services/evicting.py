"""Pods without a share are ended by their clusters: whose claims must make room by now, or were released under them.

A pod's claim that was told to go is not taken from it. Its eviction is asked for, and not its deletion: Kubernetes
heeds disruption budgets and the pod's own grace. The claim is released when the pod is over, as of every pod; until
then it holds what it uses, and who waits for it waits.

A claim that its owner or a rule has released is gone, and with it the pod's processes: its container would be started
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

# Where a node was forgotten its claims were released unseen: what runs there is not known, also if it comes back.
SEEN = Q(claim__state=ClaimState.RELEASED, claim__released_at__gt=F("node__enrolled_at"))
RELEASED = Q(claim__pod__has_key="uid") & (Q(claim__state=ClaimState.RELEASING) | SEEN)


def evict(*, cluster: Cluster, api: Api, ending: Collection[str]) -> set[str]:
    """Ask for the end of every pod that is to have none of its share; the uids of those that end now. Raises Busy.

    `ending`: the uids of pods that end already. What was refused is to be asked for again.
    """
    done, granted = set(ending), set[str]()
    rows = PodClaim.objects.live().filter(RELEASED | _making_room(), cluster=cluster)
    for row in rows.order_by("pk"):
        # Of a pod with several containers once.
        if row.pod_uid not in done and _evict(row, api):
            granted.add(row.pod_uid)
        done.add(row.pod_uid)
    return granted


def _making_room() -> Q:
    return Q(claim__in=preemption.due_with_their_pods())


def _evict(seen: PodClaim, api: Api) -> bool:
    # Anew: who waited may have been placed while the others were asked for.
    row = PodClaim.objects.live().filter(RELEASED | _making_room(), pk=seen.pk).select_related("claim").first()
    if row is None or row.claim is None:
        return False
    # With its uid: another pod of that name stays.
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
        # A disruption budget, or a right that is missing; or it has gone, and the watch will say so.
        logger.info("pod %s/%s is not evicted: %s", row.namespace, row.pod, error.detail)
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
        logger.info("pod %s/%s is not told why it ends: %s", row.namespace, row.pod, error.detail)
