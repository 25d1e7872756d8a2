"""Lost and returned nodes: one event each, for the platform and for the tenants with claims on the node."""

from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from apps.nodes.models import Node
from apps.nodes.models.node import FRESH
from apps.quotas.models import EventKind, Tenant
from apps.quotas.services.webhooks.outbox import tell
from apps.scheduling import events
from apps.scheduling.models import Assignment, Claim
from apps.scheduling.services.charging import states

# Nothing is placed on a node after ten seconds of silence; its loss is announced when it was no restart of its agent.
SILENT = timedelta(seconds=30)


def watch_nodes() -> int:
    """Announce nodes that were lost or returned since the last call; return the number of nodes."""
    now = timezone.now()
    _correct_signs_of_life(now)
    gone = Q(lost_at=None, last_seen_at__lt=now - SILENT)
    back = Q(lost_at__isnull=False) & (Q(last_seen_at__gte=now - FRESH) | Q(last_seen_at=None))
    return sum(_tell(key, now) for key in Node.objects.filter(gone | back).order_by("pk").values_list("pk", flat=True))


@transaction.atomic
def _correct_signs_of_life(now: datetime) -> None:
    """Date signs of life from the future back to now."""
    # After a clock was set back a node would otherwise not count as silent. Clocks of several servers differ by less.
    ahead = Node.objects.filter(last_seen_at__gt=now + FRESH).order_by("pk")
    keys = list(ahead.select_for_update(skip_locked=True, no_key=True).values_list("pk", flat=True))
    Node.objects.filter(pk__in=keys).update(last_seen_at=now)


@transaction.atomic
def _tell(key: int, now: datetime) -> bool:
    node = Node.objects.select_for_update(of=("self",)).select_related("pool").filter(pk=key).first()
    if node is None:
        return False
    seen = node.last_seen_at
    if seen is None:  # forgotten: nobody waits for it any more
        return bool(Node.objects.filter(pk=key).update(lost_at=None))
    lost = node.lost_at is None
    if seen >= now - SILENT if lost else seen < now - FRESH:
        return False
    Node.objects.filter(pk=key).update(lost_at=now if lost else None)
    kind = EventKind.NODE_LOST if lost else EventKind.NODE_RETURNED
    facts: dict[str, Any] = {"node": node.name, "pool": node.pool.name, "last_seen_at": seen}
    live = Assignment.objects.filter(gpu__node=node).live()
    uids = sorted(live.values_list("claim__tenant", "claim__uid").distinct())
    tell(kind, tenant=None, **facts, claims=len(uids))
    for tenant in Tenant.objects.filter(pk__in={key for key, _ in uids}).order_by("pk"):
        mine = [str(uid) for key, uid in uids if key == tenant.pk]
        tell(kind, tenant=tenant, platform=False, **facts, claims=mine)
    claims = list(Claim.objects.filter(assignments__in=live).distinct().select_related("tenant", "pool").order_by("pk"))
    of_claim = EventKind.CLAIM_UNREACHABLE if lost else EventKind.CLAIM_REACHABLE
    for claim in claims:
        states.tell_of(claim, of_claim, node=node.name, last_seen_at=seen)
    # Open pages show the claims' state by their node's.
    events.claims_changed_on_commit(claims)
    return True
