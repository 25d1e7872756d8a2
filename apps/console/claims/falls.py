"""Falls under MPS for the pages of claims and GPUs: programs that lost their GPU together."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from apps.nodes.models import Gpu
from apps.quotas.models import AuditEvent
from apps.quotas.models.pool import BackEnd
from apps.scheduling.models import Assignment, Claim
from apps.scheduling.services.claims.falls import ACTION

LATELY = timedelta(hours=24)
EVENTS = ("agent.mps-client-fault", "agent.mps-server-ended", "agent.mps-daemon-ended")
MOST = 5
# The events of a node that are searched for those of one GPU.
SEARCHED = 50


def find_fall(claim: Claim, live: list[Assignment]) -> dict[str, Any] | None:
    """Return the claim's last fall where it is placed now: time, cause, and who fell with it."""
    if not any(item.gpu.backend == BackEnd.MPS for item in live):
        return None
    since = max(timezone.now() - LATELY, min(item.created_at for item in live))
    events = AuditEvent.objects.filter(object_type="claim", object_id=str(claim.uid), action=ACTION, at__gt=since)
    event = events.order_by("-pk").first()
    return {"at": event.at, **event.after} if event is not None and event.after else None


def find_falls(gpu: Gpu, live: Iterable[Assignment]) -> list[tuple[datetime, str]]:
    """Return the last falls on the GPU, newest first: times and words, which name the claims that are still there."""
    if gpu.backend != BackEnd.MPS:
        return []
    since = timezone.now() - LATELY
    events = AuditEvent.objects.filter(object_type="node", object_id=gpu.node.name, action__in=EVENTS, at__gt=since)
    details = [(event.at, str((event.after or {}).get("detail", ""))) for event in events.order_by("-pk")[:SEARCHED]]
    found = [(at, words) for at, words in details if gpu.uuid in words][:MOST]
    for item in live if found else ():
        found = [(at, words.replace(str(item.claim.uid), str(item.claim))) for at, words in found]
    return found
