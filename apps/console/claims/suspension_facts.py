"""The facts that a claim's page shows of a suspension: the memory that it needs, and the room on the claim's GPUs."""

from typing import Any

from apps.nodes.models import Node
from apps.quotas.models.pool import BackEnd
from apps.scheduling.models import Claim, ClaimState
from apps.scheduling.models.claim import PUT_ASIDE
from apps.suspension.between import carrying
from apps.suspension.between.ordering import END_SECONDS
from apps.suspension.moving import pause_seconds

# Of a choice on a page; the API takes any.
MOST_NODES = 100


def find_suspension_facts(claim: Claim) -> dict[str, Any]:
    """Return what the page says of a suspension: if it can be asked for, and the memory and room that there are.

    The assignments and their nodes must be loaded.
    """
    live = [item for item in claim.assignments.all() if item.state != "released"]
    nodes = {item.gpu.node_id: item.gpu.node for item in live}
    needed = {
        node.pk: sum(item.held_memory_mib for item in live if item.gpu.node_id == node.pk) for node in nodes.values()
    }
    free = {node.pk: max(0, node.host_memory_mib - node.host_memory_used_mib) for node in nodes.values()}
    short = next((node for node in nodes.values() if needed[node.pk] > free[node.pk]), None)
    alone = claim.pod is None and claim.reservation_id is None and claim.group is None and not claim.profile
    may_suspend = (
        claim.state == ClaimState.ACTIVE
        and alone
        and bool(nodes)
        and all(item.gpu.backend != BackEnd.MPS for item in live)
        and all(node.can_suspend and node.online for node in nodes.values())
    )
    return {
        "may_suspend": may_suspend,
        "may_move": may_suspend and not claim.borrowed_core and [node.can_move for node in nodes.values()] == [True],
        **_find_other_nodes(claim, nodes if claim.movable and claim.state == ClaimState.ACTIVE and alone else {}),
        "end_seconds": END_SECONDS,
        "pause_seconds": pause_seconds(claim),
        "is_moving": claim.state in PUT_ASIDE and any(item.other_gpu_id is not None for item in live),
        "may_resume": claim.state == ClaimState.SUSPENDED,
        "may_stay": claim.waits_to_resume,
        "needed_mib": sum(needed.values()),
        "free_mib": sum(free.values()),
        "short": short,
        "nodes": ", ".join(sorted(node.name for node in nodes.values())),
        "full": [
            item.gpu
            for item in live
            if item.gpu.core_free < claim.core_request or item.gpu.memory_free_mib < claim.memory_mib
        ],
    }


def _find_other_nodes(claim: Claim, nodes: dict[int, Node]) -> dict[str, Any]:
    """Return the names of nodes to which the claim may be moved, if they have room, and how; none from no node."""
    if not nodes:
        return {"other_nodes": []}
    rows = Node.objects.filter(pool=claim.pool_id, can_restart=True).exclude(pk__in=nodes).order_by("name")
    source = next(iter(nodes.values()))
    return {
        "other_nodes": [node.name for node in rows[:MOST_NODES] if node.state == "ready"],
        "not_carried": carrying.find_carry_obstacle(claim, source),
        "carry_seconds": carrying.pause_seconds(claim),
    }
