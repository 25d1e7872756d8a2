"""Members of an elastic group as its programs are told of them."""

from typing import Any

from django.db import transaction
from django.utils import timezone

from apps.nodes.models import Node
from apps.scheduling.models import Assignment, Claim, ClaimState, ElasticGroup
from apps.scheduling.services.claims.lifecycle import raise_frames


def publish(group: ElasticGroup) -> bool:
    """Bring the group's row in step with its members; True if they changed, and the nodes of all are told."""
    now = read_members(group)
    if now == group.members:
        return False
    with transaction.atomic():
        row = ElasticGroup.objects.select_for_update(of=("self",)).get(pk=group.pk)
        nodes = {member["node"] for member in (*row.members, *now)}
        row.members, row.generation, row.updated_at = now, row.generation + 1, timezone.now()
        row.save(update_fields=["members", "generation", "updated_at"])
        raise_frames(set(Node.objects.filter(name__in=nodes).values_list("pk", flat=True)))
    return True


def read_members(group: ElasticGroup) -> list[dict[str, Any]]:
    """Return the members whose programs may run now, oldest first: a member's rank is its place."""
    rows = Claim.objects.filter(group_uid=group.first.uid, state=ClaimState.ACTIVE).order_by("pk")
    live = Assignment.objects.filter(claim__in=rows).live().select_related("gpu__node")
    nodes = {row.claim_id: row.gpu.node for row in live}
    return [
        {
            "claim": str(claim.uid),
            "node": nodes[claim.pk].name,
            "host": nodes[claim.pk].hostname[:64],
            "gpu_count": claim.gpu_count,
            "joined_at": claim.assigned_at and claim.assigned_at.isoformat(),
            "leaves_at": claim.preempt_at and claim.preempt_at.isoformat(),
        }
        for claim in rows
        if claim.pk in nodes
    ]


def state_of(group: ElasticGroup) -> str:
    """Return `waiting`, `running` or `ended`."""
    first = group.first
    if first.state == ClaimState.RELEASED or (first.state == ClaimState.RELEASING and first.preempt_at is None):
        return "ended"
    return "running" if len(group.members) >= group.least else "waiting"
