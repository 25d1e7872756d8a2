"""Pods that must make room: their clusters end them, when the time has come that their claims were told.

An eviction is asked for and not a deletion: Kubernetes heeds the pod's disruption budgets and its own grace. The claim
is released when the pod is over, as of every pod; until then it holds what it uses, and who waits for it waits.
"""

import logging
from collections.abc import Collection

from apps.clusters.models import Cluster, PodClaim
from apps.clusters.services import pod_events
from apps.clusters.services.pod_events import Api
from apps.scheduling.services.lending import preemption
from gpucloud.errors import Busy, GpucloudError

logger = logging.getLogger(__name__)


def evict(*, cluster: Cluster, api: Api, ending: Collection[str]) -> set[str]:
    """Ask for the end of every pod whose time has come; the uids of those that end now. Raises Busy.

    `ending`: the uids of pods that end already. What was refused is to be asked for again.
    """
    rows, done, granted = PodClaim.objects.live().filter(cluster=cluster), set(ending), set[str]()
    for row in rows.filter(claim__in=preemption.due_with_their_pods()).order_by("pk"):
        # Of a pod with several containers once.
        if row.pod_uid not in done and _evict(row, api):
            granted.add(row.pod_uid)
        done.add(row.pod_uid)
    return granted


def _evict(row: PodClaim, api: Api) -> bool:
    # Anew: who waited may have been placed while the others were asked for.
    claim = preemption.due_with_their_pods().filter(container=row).first()
    if claim is None:
        return False
    path = f"/api/v1/namespaces/{row.namespace}/pods/{row.pod}/eviction"
    # With its uid: another pod of that name stays.
    only = {"preconditions": {"uid": row.pod_uid}}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "deleteOptions": only}
    try:
        api.post(path, {**body, "metadata": {"name": row.pod, "namespace": row.namespace}})
    except Busy:
        raise
    except GpucloudError as error:
        # A disruption budget, or a right that is missing; or it has gone, and the watch will say so.
        logger.info("pod %s/%s is not evicted: %s", row.namespace, row.pod, error.detail)
        return False
    preemption.end_with_pod(claim)
    why = "; ".join(reason["detail"] for reason in claim.reasons)
    try:
        pod_events.post(api, row, kind="Warning", reason="Preempted", words=f"{why}.")
    except Busy:
        raise
    except GpucloudError as error:
        logger.info("pod %s/%s is not told why it ends: %s", row.namespace, row.pod, error.detail)
    return True
