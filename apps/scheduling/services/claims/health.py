"""Health of GPUs and nodes: records for claims' owners, fences where the pool wants them, and operators' orders.

Running claims are left as they are.
"""

from collections.abc import Iterable

from django.db import transaction
from django.utils import timezone

from agent.wire import ConditionType
from apps.nodes.models import Condition, Gpu, Node
from apps.nodes.services.conditions import GOOD, Change
from apps.quotas.models.pool import AuditPolicy
from apps.quotas.principals import SYSTEM, Principal
from apps.quotas.services import audit
from apps.scheduling import events
from apps.scheduling.models import Assignment
from apps.scheduling.services.claims.lifecycle import raise_frames
from gpucloud.api import etags


@transaction.atomic
def tell_owners(*, node: Node, changes: Iterable[Change]) -> int:
    """Write an audit row for each claim on a GPU whose condition changed; return the number of claims.

    Changes past the bound of the node's audit rows are shown on pages, and get no row.
    """
    told = 0
    for change in changes:
        if change.gpu is None:
            continue
        rows = Assignment.objects.filter(gpu=change.gpu).live()
        claims = [row.claim for row in rows.select_related("claim__tenant", "claim__pool").order_by("claim_id")]
        good = change.condition.status == GOOD
        for claim in claims if change.recorded else ():
            audit.record(
                Principal(name=f"agent:{node.name}"),
                "claim.gpu_recovered" if good else "claim.gpu_unhealthy",
                claim,
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


@transaction.atomic
def fence_if_wanted(*, node: Node) -> bool:
    """Fence the node if its pool wants that and a process ran past its limits since the last fence was lifted."""
    node = Node.objects.select_for_update(of=("self",)).select_related("pool").get(pk=node.pk)
    if node.pool.audit_policy != AuditPolicy.FENCE or node.fenced_at is not None:
        return False
    told = Condition.objects.filter(node=node, gpu=None, type=ConditionType.PROCESSES_LIMITED).exclude(status=GOOD)
    row = told.filter(since_seconds__gt=node.fence_lifted_through_seconds).first()
    if row is None:
        return False
    node.change(fenced_at=timezone.now(), fenced_why=row.message)
    audit.record(SYSTEM, "node.fence", node, after={"why": row.message})
    return True


@transaction.atomic
def lift_fence(*, principal: Principal, node: Node, versions: etags.Versions = None) -> Node:
    """Let the node take claims again; what its agent has reported so far does not fence it anew. Repeatable."""
    principal.require_operator()
    node = etags.lock(node, versions, "pool")
    if node.fenced_at is None:
        return node
    told = Condition.objects.filter(node=node, gpu=None, type=ConditionType.PROCESSES_LIMITED)
    through = max([node.fence_lifted_through_seconds, *told.values_list("since_seconds", flat=True)])
    why = node.fenced_why
    node.change(fenced_at=None, fenced_why="", fence_lifted_through_seconds=through)
    audit.record(principal, "node.lift_fence", node, before={"why": why})
    return node


@transaction.atomic
def clear_gpu(*, principal: Principal, gpu: Gpu, versions: etags.Versions = None) -> Gpu:
    """Treat an XID error that only a reset cures as cured. The agent receives this, and reports the GPU's state then.

    Repeatable; nothing changes if the GPU has no such error.
    """
    principal.require_operator()
    gpu = etags.lock(gpu, versions, "node")
    row = gpu.conditions.filter(type=ConditionType.NO_XID_ERRORS).exclude(status=GOOD).first()
    if row is None or row.since_seconds <= gpu.cleared_through_seconds:
        return gpu
    gpu.change(cleared_through_seconds=row.since_seconds)
    audit.record(principal, "gpu.clear", gpu.node, after={"gpu": gpu.uuid, "reason": row.reason, "detail": row.message})
    raise_frames({gpu.node_id})
    return gpu
