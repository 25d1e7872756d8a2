"""Eviction of pods whose ResourceClaim has no share: the ledger had no room for it, or its claim was released."""

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from django.conf import settings
from django.utils import timezone

from apps.clusters.dra import ledger, requests
from apps.clusters.dra.ledger import ENDING
from apps.clusters.models import Cluster, DeviceClaim
from apps.clusters.services.evicting import report, request_eviction
from apps.clusters.services.pod_events import Api
from apps.scheduling.models import ClaimState
from apps.scheduling.services.reclaiming import preemption


class PodOfClaim(NamedTuple):
    """A pod that uses a ResourceClaim."""

    namespace: str
    pod: str
    pod_uid: str


def evict(
    *,
    cluster: Cluster,
    api: Api,
    there: Mapping[str, Mapping[str, Any]],
    ending: Collection[str],
    released: set[int] | None = None,
) -> set[str]:
    """Evict the pods of ResourceClaims without a share; return the uids of all that end now. Raises Busy.

    `there`: the ResourceClaims by uid. `ending`: the uids of pods that were evicted before. `released`: the released
    claims whose pods were; it is changed. A pod that comes afterwards, while another one keeps the ResourceClaim
    allocated, is not evicted, too: the ResourceClaim is charged anew for it.
    """
    released = set() if released is None else released
    reserved = {uid for thing in there.values() for _, uid in requests.users(thing)}
    done = set(ending) & reserved
    rows = DeviceClaim.objects.live().filter(cluster=cluster).select_related("claim").order_by("pk")
    due = set(preemption.due_with_their_pods().values_list("pk", flat=True))
    for row in rows.exclude(problem="") | rows.filter(claim__state__in=ENDING) | rows.filter(claim__in=due):
        why, users = _reason(row, due), requests.users(there.get(row.uid) or {})
        if row.claim_id in released and any(uid not in done for _, uid in users):
            if row.claim is not None and row.claim.state == ClaimState.RELEASED:
                ledger.renew(row, row.claim)
            continue
        if why and why[0] == "Released" and row.claim_id is not None:
            released.add(row.claim_id)
        for name, uid in users if why else ():
            pod = PodOfClaim(row.namespace, name, uid)
            if uid not in done and request_eviction(pod, api):
                done.add(uid)
                report(pod, api, *why)
                if row.claim is not None and row.claim.pk in due:
                    preemption.end_with_pod(row.claim)
    return done


def _reason(row: DeviceClaim, due: Collection[int]) -> tuple[str, str] | tuple[()]:
    """Return why the pods of the ResourceClaim are to end: a word and a sentence; empty if they are not."""
    claim = row.claim
    if claim is not None and claim.pk in due:
        return "Preempted", "; ".join(item["detail"] for item in claim.reasons) + "."
    if claim is not None and claim.state in ENDING:
        return "Released", f"The claim {claim.uid} of ResourceClaim {row.name} was released."
    late = timezone.now() - timedelta(seconds=settings.POD_CLAIM_SECONDS)
    if not settings.POD_CLAIM_SECONDS or row.problem_since is None or row.problem_since > late:
        return ()
    # What was placed runs, whatever its annotations ask.
    if claim is not None and claim.state != ClaimState.ALLOCATING:
        return ()
    return "NoClaim", f"{row.problem} ResourceClaim {row.name} has had no share for {settings.POD_CLAIM_SECONDS} s."
