"""Telling the owners of claims what befell their GPUs. Their claims are left as they are."""

from collections.abc import Iterable

from django.db import transaction

from apps.nodes.models import Node
from apps.nodes.services.conditions import GOOD, Change
from apps.quotas.principals import Principal
from apps.quotas.services import audit
from apps.scheduling import events
from apps.scheduling.models import Assignment, AssignmentState


@transaction.atomic
def tell_owners(*, node: Node, changes: Iterable[Change]) -> int:
    """A row in each claim's history for each change of a GPU that carries it; how many."""
    told = 0
    for change in changes:
        if change.gpu is None:
            continue
        rows = Assignment.objects.filter(gpu=change.gpu).exclude(state=AssignmentState.RELEASED)
        claims = [row.claim for row in rows.select_related("claim__tenant", "claim__pool").order_by("claim_id")]
        good = change.condition.status == GOOD
        for claim in claims:
            audit.record(
                principal=Principal(name=f"agent:{node.name}"),
                action="claim.gpu_recovered" if good else "claim.gpu_unhealthy",
                object_type="claim",
                object_id=claim.uid,
                tenant=claim.tenant,
                after={
                    "gpu": change.gpu.uuid,
                    "type": change.condition.type,
                    "reason": change.condition.reason,
                    "detail": change.condition.message,
                },
            )
        events.claims_changed_on_commit(claims)
        told += len(claims)
    return told
