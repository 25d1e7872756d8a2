"""What is wanted on a node, and the secrets by which its processes prove whose they are."""

import hashlib
import hmac
import uuid
from typing import cast

from django.conf import settings

from agent import wire
from apps.nodes.models import Node
from apps.scheduling.models import Assignment, AssignmentState, Claim

MIB = 1 << 20


def claim_secret(claim_uid: uuid.UUID) -> str:
    """Derived, not stored: who may read the claim's environment gets it, the agent knows its digest only."""
    text = f"claim:{claim_uid}".encode()
    return "gps_" + hmac.new(settings.SECRET_KEY.encode(), text, hashlib.sha256).hexdigest()


def desired_state(node: Node) -> wire.Desired:
    """The node's whole wanted state.

    The frame's number is read before its contents, so contents are never older than the number says.
    """
    frame = Node.objects.values_list("frame", flat=True).get(pk=node.pk)
    rows = (
        Assignment.objects.filter(gpu__node=node)
        .exclude(state=AssignmentState.RELEASED)
        .select_related("claim__tenant", "claim__pool", "gpu")
        .order_by("pk")
    )
    return wire.Desired(frame=frame, assignments=[_on_the_wire(row) for row in rows])


def _on_the_wire(row: Assignment) -> wire.Assignment:
    return wire.Assignment(
        uid=str(row.uid),
        claim_uid=str(row.claim.uid),
        claim_name=row.claim.name,
        tenant=row.claim.tenant.slug,
        gpu_uuid=row.gpu.uuid,
        generation=row.generation,
        # What is borrowed is guaranteed to somebody else.
        core_request=0 if row.borrowed_core else row.core_request,
        core_limit=row.core_limit,
        memory_bytes=row.memory_mib * MIB,
        sharing=_sharing(row.claim),
        secret_digest=hashlib.sha256(claim_secret(row.claim.uid).encode()).hexdigest(),
        present=row.state != AssignmentState.RELEASING,
    )


def _sharing(claim: Claim) -> wire.Sharing | None:
    sharing = wire.Sharing(
        policy=cast(wire.Policy, claim.pool.sharing_policy),
        weight=claim.weight,
        best_effort=claim.best_effort,
        ceiling=claim.pool.core_ceiling,
        parts=claim.pool.parts,
    )
    return None if sharing == wire.Sharing() else sharing
