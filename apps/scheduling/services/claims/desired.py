"""What is wanted on a node, and the secrets by which its processes prove whose they are."""

import hashlib
import hmac
import uuid
from collections.abc import Iterable
from typing import Any, cast

from django.conf import settings
from msgspec import UNSET, UnsetType

from agent import wire
from apps.nodes.models import Gpu, Node
from apps.scheduling.models import Assignment, AssignmentState

MIB = 1 << 20


def claim_secret(claim_uid: uuid.UUID) -> str:
    """Derived, not stored: who may read the claim's environment gets it, the agent knows its digest only."""
    text = f"claim:{claim_uid}".encode()
    return "gps_" + hmac.new(settings.SECRET_KEY.encode(), text, hashlib.sha256).hexdigest()


def desired_state(node: Node) -> wire.Desired:
    """The node's whole wanted state."""
    return desired_states([node.pk])[node.pk]


# What `_on_the_wire` reads of an assignment: rows, not objects, as a change may concern every node of a fleet.
COLUMNS = (
    "gpu__node_id", "uid", "claim__uid", "claim__tenant__slug", "gpu__uuid", "generation", "core_request", "core_limit",
    "memory_mib", "borrowed_core", "state", "claim__pool__sharing_policy", "claim__weight", "claim__best_effort",
    "claim__pool__core_ceiling", "claim__pool__parts", "claim__name",
)  # fmt: skip


def desired_states(node_ids: Iterable[int]) -> dict[int, wire.Desired]:
    """The whole wanted states of these nodes, as far as they exist.

    A frame's number is read before its contents, so contents are never older than the number says.
    """
    nodes = Node.objects.filter(pk__in=node_ids).values_list("pk", "frame", "repair_drift", "repair_asked_at")
    frames = {pk: (frame, mends or asked_at is not None) for pk, frame, mends, asked_at in nodes}
    rows = Assignment.objects.filter(gpu__node__in=frames).exclude(state=AssignmentState.RELEASED).order_by("pk")
    wanted: dict[int, list[wire.Assignment]] = {node_id: [] for node_id in frames}
    for row in rows.values_list(*COLUMNS, named=True):
        wanted[row.gpu__node_id].append(_on_the_wire(row))
    policies = _policies(frames)
    return {
        node_id: wire.Desired(
            frame=frame, policy=policies[node_id], assignments=wanted[node_id], mend=UNSET if mends else False
        )
        for node_id, (frame, mends) in frames.items()
    }


def _policies(node_ids: Iterable[int]) -> dict[int, wire.NodePolicy | UnsetType]:
    """What their pools and operators want beside assignments; left out where that is the usual."""
    cleared: dict[int, dict[str, float]] = {}
    gpus = Gpu.objects.filter(node__in=node_ids, cleared_through_seconds__gt=0)
    for node_id, uuid_, through in gpus.values_list("node_id", "uuid", "cleared_through_seconds"):
        cleared.setdefault(node_id, {})[uuid_] = through
    audits = Node.objects.filter(pk__in=node_ids).values_list("pk", "pool__audit_policy")
    policies = {
        node_id: wire.NodePolicy(audit=cast(wire.AuditPolicy, audit), cleared=cleared.get(node_id, {}))
        for node_id, audit in audits
    }
    return {key: UNSET if policy == wire.NodePolicy() else policy for key, policy in policies.items()}


def _on_the_wire(row: Any) -> wire.Assignment:
    sharing = wire.Sharing(
        policy=cast(wire.Policy, row.claim__pool__sharing_policy),
        weight=row.claim__weight,
        best_effort=row.claim__best_effort,
        ceiling=row.claim__pool__core_ceiling,
        parts=row.claim__pool__parts,
    )
    return wire.Assignment(
        uid=str(row.uid),
        claim_uid=str(row.claim__uid),
        claim_name=row.claim__name,
        tenant=row.claim__tenant__slug,
        gpu_uuid=row.gpu__uuid,
        generation=row.generation,
        # What is borrowed is guaranteed to somebody else.
        core_request=0 if row.borrowed_core else row.core_request,
        core_limit=row.core_limit,
        memory_bytes=row.memory_mib * MIB,
        sharing=None if sharing == wire.Sharing() else sharing,
        secret_digest=hashlib.sha256(claim_secret(row.claim__uid).encode()).hexdigest(),
        present=row.state != AssignmentState.RELEASING,
    )
