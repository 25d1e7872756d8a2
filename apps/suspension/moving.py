"""Orders to move a claim's programs to other GPUs of their node: suspended here, resumed there.

The share on the new GPUs and the host memory are charged before the agent is asked; the old share is free once the
claim is in force on the new GPUs. Until then it can go back, and does so if the node cannot move it
(`apps.scheduling.services.claims.suspension_reports`). The tenant's quota is charged once: it is one claim.
"""

from collections.abc import Callable, Sequence
from typing import Any

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from apps.nodes.models import Gpu, Node
from apps.nodes.services import capacity
from apps.quotas.models import Resource
from apps.quotas.principals import Principal
from apps.quotas.services import audit
from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.values import Refused
from apps.scheduling.models import Assignment, Claim, ClaimState
from apps.scheduling.services.charging import states
from apps.scheduling.services.claims.lifecycle import WrongState, locked, raise_frames, request_of
from apps.scheduling.services.claims.suspension_reports import find_moves
from apps.scheduling.services.fleet.devices import read_devices, read_nodes
from apps.scheduling.services.fleet.reserved import Guard, read_reserved
from apps.scheduling.services.previews.dry_runs import rehearse
from apps.suspension.services import begin_suspension, refuse_back_ends, refuse_kind, refuse_nodes, refuse_state
from gpucloud.api import etags
from gpucloud.errors import Conflict

# Measured on H100s with driver 580: GPU memory goes out at 2.1 GiB/s and comes back at 5.2 GiB/s.
SECONDS_EACH_GIB = 1 / 2.1 + 1 / 5.2
MOVE_SECONDS = 1.0


class CannotMove(Conflict, code="cannot-move", title="The claim cannot be moved there"):
    """The node, the GPUs named or the claim's kind do not allow the move."""


class NoRoomToMove(Conflict, code="no-room-to-move", title="No room to move to"):
    """The GPUs on which the claim is to be have no room for it."""


@transaction.atomic
def move_claim(
    *,
    principal: Principal,
    claim: Claim,
    gpus: Sequence[str] | None = None,
    versions: etags.Versions = None,
) -> Claim:
    """Have the claim's programs move to other GPUs of their node. Repeatable while it moves.

    `gpus`: the uuids of all GPUs on which it is to be, as many as it has; None: the placement policy chooses
    others than its own. Raises WrongState, CannotSuspend, SuspendUnsupported, NodeUnreachable,
    CannotMove, NoRoomToMove, NoHostMemory, QuotaExceeded (of host memory), PreconditionFailed, RoleMissing.
    """
    principal.require_role(claim.tenant, "member")
    claim = locked(claim, versions)
    rows = claim.assignments.live().select_related("gpu__node", "other_gpu").order_by("gpu_id")
    assignments = list(rows)
    if claim.state in (ClaimState.SUSPENDING, ClaimState.RESUMING) and find_moves(assignments):
        return claim
    refuse_state(claim, wanted=ClaimState.ACTIVE, what="moved")
    if any(item.counterpart_id is not None for item in assignments):
        raise WrongState("It moves to another node: wait until its former node has ended.", state=claim.state)
    refuse_kind(claim)
    node = _find_node(claim, assignments)
    chosen = _named(node, assignments, gpus) if gpus is not None else _chosen(claim, node, assignments)
    moving = [(item, target) for item, target in zip(assignments, chosen, strict=True) if target != item.gpu]
    if not moving:
        raise CannotMove("It is on these GPUs already.", node=node.name)
    # The order of locks: quotas, GPUs, nodes.
    memory_mib = sum(item.held_memory_mib for item in assignments)
    states.charge_to(claim, {**claim.charged, Resource.HOST_MEMORY_MIB: memory_mib}, principal=principal)
    _take_targets(claim, node, moving)
    begin_suspension(claim, assignments, reasons=[])
    raise_frames({node.pk})
    moves = [{"from": item.gpu.uuid, "to": target.uuid} for item, target in moving]
    after = {"state": claim.state, "node": node.name, "moves": moves}
    audit.record(principal, "claim.move", claim, before={"state": ClaimState.ACTIVE}, after=after)
    return claim


def rehearse_move(act: Callable[[], Claim], show: Callable[[Claim], dict[str, Any]], *, claim: Claim) -> dict[str, Any]:
    """Return the claim as it would be, with the GPUs from and to which it would move, and the expected pause."""
    moves: list[dict[str, str]] = []

    def act_and_note() -> Claim:
        row = act()
        moves.extend(find_moves(list(row.assignments.live().select_related("gpu", "other_gpu").order_by("gpu_id"))))
        return row

    shown = rehearse(act_and_note, show)
    return {**shown, "moves": moves, "pause_seconds": pause_seconds(claim)}


def pause_seconds(claim: Claim) -> int:
    """Return the time for which its programs stand still at most, were all of its GPU memory in use."""
    gib = claim.memory_mib * claim.gpu_count / 1024
    return round(MOVE_SECONDS + gib * SECONDS_EACH_GIB)


def _find_node(claim: Claim, assignments: Sequence[Assignment]) -> Node:
    nodes = {item.gpu.node_id: item.gpu.node for item in assignments}
    if len(nodes) != 1:
        raise CannotMove(f"It is on {len(nodes)} nodes, and a move is within one.", nodes=len(nodes))
    (node,) = nodes.values()
    refuse_back_ends(item.gpu for item in assignments)
    refuse_nodes([node])
    if not node.can_move:
        raise CannotMove(
            f"Node {node.name} cannot move programs between its GPUs: that needs driver 580 or newer and two GPUs of "
            "one model, without MIG.",
            node=node.name,
        )
    if claim.borrowed_core:
        raise CannotMove("It runs on borrowed core of its GPUs, which others have not.", of="borrowed core")
    return node


def _named(node: Node, assignments: Sequence[Assignment], uuids: Sequence[str]) -> list[Gpu]:
    """Return the GPU of each assignment, those that stay first in their own place. Raises CannotMove."""
    found = {gpu.uuid: gpu for gpu in Gpu.objects.filter(node=node, uuid__in=uuids)}
    if len(found) != len(assignments) or len(uuids) != len(assignments):
        missing = sorted(set(uuids) - found.keys())
        raise CannotMove(
            f"Node {node.name} has no {', '.join(missing)}."
            if missing
            else f"It is on {len(assignments)} GPU(s): name as many different ones.",
            node=node.name,
        )
    here = {item.gpu.uuid for item in assignments}
    free = [found[uuid] for uuid in dict.fromkeys(uuids) if uuid not in here]
    chosen = [item.gpu if item.gpu.uuid in found else free.pop(0) for item in assignments]
    for item, target in zip(assignments, chosen, strict=True):
        if item.gpu.model != target.model:
            raise CannotMove(
                f"GPU {target.index} is a {target.model}, and its programs are on a {item.gpu.model}: a program stays "
                "on GPUs of one model.",
                node=node.name,
            )
    return chosen


def _chosen(claim: Claim, node: Node, assignments: Sequence[Assignment]) -> list[Gpu]:
    """Return the GPU of each assignment by the placement policy of the pool. Raises NoRoomToMove."""
    here, models = {item.gpu.uuid for item in assignments}, {item.gpu.model for item in assignments}
    devices = {
        device.state.uuid: device
        for device in read_devices(claim.pool, Q(node=node))
        if device.state.uuid not in here and models == {device.state.model}
    }
    alike = {item.gpu.backend for item in assignments}
    fitting = Gpu.objects.filter(node=node, backend__in=alike).values_list("uuid", flat=True)
    devices = {uuid: devices[uuid] for uuid in fitting if uuid in devices}
    fleet = [device.state for device in devices.values()]
    held = read_reserved(claim.pool, now=timezone.now()).withheld_from(claim, lambda: fleet)
    answer: Any = Fleet(fleet, read_nodes(claim.pool), policy=claim.pool.placement_policy).place(
        request_of(claim), held=held
    )
    if isinstance(answer, Refused):
        why = "; ".join(reason.detail for reason in answer.reasons)
        raise NoRoomToMove(f"No other GPUs of node {node.name} of its model have room for it: {why}.", node=node.name)
    gpus = Gpu.objects.in_bulk([devices[uuid].pk for uuid in answer.gpus])
    return [gpus[devices[uuid].pk] for uuid in answer.gpus]


def lock_gpus(keys: set[int]) -> dict[int, Gpu]:
    """Lock these GPUs, by key, in the order in which rounds do it."""
    return {gpu.pk: gpu for gpu in Gpu.objects.select_for_update(no_key=True).filter(pk__in=keys).order_by("pk")}


def refuse_other_back_end(source: Gpu, target: Gpu) -> None:
    """Refuse a GPU whose claims share it in another way. Raises CannotMove."""
    if source.backend != target.backend:
        raise CannotMove(
            f"GPU {target.index} has the back end {target.backend}, and its programs run with {source.backend}: a "
            "claim keeps its back end until it ends.",
            of="back end",
        )


def _take_targets(claim: Claim, node: Node, moving: Sequence[tuple[Assignment, Gpu]]) -> None:
    """Charge the claim's share on the GPUs to which it moves, too. Raises CannotMove, NoRoomToMove."""
    gpus = lock_gpus({gpu.pk for item, target in moving for gpu in (item.gpu, target)})
    guard = Guard([target.pk for _, target in moving], now=timezone.now())
    for item, target in sorted(moving, key=lambda pair: pair[1].pk):
        gpu = gpus[target.pk]
        if gpu.state != "ready" or node.state != "ready":
            where = f"GPU {gpu.index}" if node.state == "ready" else f"node {node.name}"
            raise CannotMove(f"{where[0].upper()}{where[1:]} takes no claims now: {gpu.state}.", node=node.name)
        refuse_other_back_end(item.gpu, gpu)
        taken = guard.admits(claim, [target.pk]) and capacity.take(
            gpu_id=target.pk, core=item.held_core, memory_mib=item.held_memory_mib
        )
        if not taken:
            raise NoRoomToMove(
                f"GPU {gpu.index} of node {node.name} has {max(0, gpu.core_free)} % core and {gpu.memory_free_mib} MiB "
                f"free that are not reserved, and {item.held_core} % and {item.held_memory_mib} MiB are needed.",
                node=node.name,
            )
        item.other_gpu = target
