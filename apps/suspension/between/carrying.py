"""Conditions under which running programs are carried to another node, and the pause to expect."""

from collections import Counter
from collections.abc import Sequence

from django.db.models import Q

from apps.nodes.models import Node
from apps.nodes.services import capacity
from apps.quotas.models import Resource
from apps.quotas.principals import Principal
from apps.scheduling.models import Assignment, Claim
from apps.scheduling.services.charging import states
from apps.scheduling.services.claims.suspending import find_refusal
from apps.scheduling.services.claims.suspension_reports import CARRY_REFUSED
from apps.suspension.services import refuse_memory

# Measured on an H100 with 2 and 20 GiB: dumped, sent, restored.
SECONDS_EACH_GIB = 5.1
LEAST_SECONDS = 1.0
# The agent's self-check that says why running programs cannot be carried.
CHECK = "carry"


def pause_seconds(claim: Claim) -> int:
    """Return the time for which carried programs stand still at most, were all of its GPU memory in use."""
    return round(LEAST_SECONDS + claim.memory_mib * claim.gpu_count / 1024 * SECONDS_EACH_GIB)


def find_lack(node: Node) -> str | None:
    """Return what would have to be different for running programs to be carried to and from the node; None: nothing."""
    if node.can_carry:
        return None
    check = next((one for one in node.checks if one["name"] == CHECK), None)
    if check is None:
        return f"The agent of node {node.name} is too old to carry running programs: upgrade it."
    if check["state"] != "ok":
        return f"Node {node.name}: {check['detail']}. {check.get('cure') or ''}".strip()
    if "not wanted" in check["detail"]:
        return (
            f"Node {node.name} does not carry running programs: an operator has to set GPUCLOUD_CARRY and "
            "GPUCLOUD_CARRY_UIDS of its agent."
        )
    return f"The GPU driver of node {node.name} cannot suspend programs: it needs driver 570 or newer."


def find_carry_obstacle(claim: Claim, source: Node, target: Node | None = None) -> str | None:
    """Return why the claim's running programs cannot be carried to the target, or to any node; None if they can."""
    if (lack := find_lack(source)) is not None:
        return lack
    if target is not None:
        return find_lack(target)
    others = Node.objects.filter(pool=claim.pool_id, simulated=source.simulated).exclude(pk=source.pk)
    if others.filter(can_carry=True).exists():
        return None
    first = others.order_by("name").first()
    why = f" {find_lack(first)}" if first is not None else ""
    return f"No other node of pool {claim.pool.name} can take running programs.{why}"


def may_carry(claim: Claim) -> bool:
    """Return True if a move of the claim to another node would carry its running programs, as far as is known."""
    if find_refusal(claim, CARRY_REFUSED) is not None:
        return False
    row = claim.assignments.live().select_related("gpu__node").order_by("gpu_id").first()
    return row is not None and find_carry_obstacle(claim, row.gpu.node) is None


def can_carry(*, wanted: bool) -> Q:
    """Return the condition of nodes that take programs in this way."""
    return Q(node__can_carry=True) if wanted else Q(node__can_restart=True)


def charge_quota(claim: Claim, rows: Sequence[Assignment], principal: Principal) -> None:
    """Charge the memory of both nodes to the tenant's quota. Raises QuotaExceeded."""
    memory_mib = 2 * sum(row.held_memory_mib for row in rows)
    states.charge_to(claim, {**claim.charged, Resource.HOST_MEMORY_MIB: memory_mib}, principal=principal)


def take_memory(rows: Sequence[Assignment]) -> None:
    """Take the memory that these assignments are charged from their nodes. Raises NoHostMemory."""
    needed: Counter[int] = Counter()
    for row in rows:
        needed[row.gpu.node_id] += row.held_host_memory_mib
    for node_id, memory_mib in sorted(needed.items()):
        if not capacity.take_host_memory(node_id=node_id, memory_mib=memory_mib):
            refuse_memory(Node.objects.get(pk=node_id), memory_mib)
