"""Orders to move a claim to another node.

The share on the new node is charged before any node is asked; what happens then is in
`apps.suspension.between.reports`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from apps.nodes.models import Gpu, Node
from apps.nodes.services import capacity
from apps.quotas.principals import Principal
from apps.quotas.services import audit
from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.values import Refused
from apps.scheduling.models import Assignment, AssignmentState, Claim, ClaimState
from apps.scheduling.services.charging import states
from apps.scheduling.services.claims.lifecycle import WrongState, locked, raise_frames, request_of
from apps.scheduling.services.fleet.devices import read_devices, read_nodes
from apps.scheduling.services.fleet.reserved import Guard, read_reserved
from apps.scheduling.services.previews.dry_runs import rehearse
from apps.suspension.moving import CannotMove, NoRoomToMove, lock_gpus
from apps.suspension.services import NodeUnreachable, refuse_kind, refuse_state
from gpucloud.api import etags
from gpucloud.errors import Conflict

# For programs to save their state, unless the order says otherwise.
END_SECONDS = 60
MOST_END_SECONDS = 3600


@transaction.atomic
def move_claim_to_node(
    *,
    principal: Principal,
    claim: Claim,
    node: str | None = None,
    gpus: Sequence[str] | None = None,
    restart: bool = False,
    end_seconds: int = END_SECONDS,
    versions: etags.Versions = None,
) -> Claim:
    """Have the claim leave its node for another one, by a restart of its programs. Repeatable while it moves.

    `node`: its name; None: the placement policy of the pool chooses. `gpus`: the uuids of GPUs of that node; None: the
    policy chooses. `restart`: the programs may end, after `end_seconds` at most to save their state. Raises WrongState,
    CannotSuspend (for its kind), NodeUnreachable, CannotMove, NoRoomToMove, PreconditionFailed, RoleMissing.
    """
    principal.require_role(claim.tenant, "member")
    claim = locked(claim, versions)
    rows = list(claim.assignments.live().select_related("gpu__node").order_by("gpu_id"))
    if claim.state in (ClaimState.SUSPENDING, ClaimState.RESUMING) and any(item.is_target for item in rows):
        return claim
    _refuse(claim, rows)
    source = _find_source(claim, rows)
    if not restart:
        raise CannotMove(
            "Running programs cannot be carried to another node. With `restart` they get SIGUSR1 and time to save "
            f"their state ({end_seconds} s), end, and are started there again by whoever started them.",
            of="restart",
        )
    chosen = _choose(claim, source, _find_target(claim, source, node) if node is not None else None, gpus)
    target = chosen[0].node
    _take_targets(claim, rows, chosen, end_seconds)
    states.move(claim, ClaimState.SUSPENDING, generation=claim.generation + 1, reasons=[])
    raise_frames({target.pk})
    moves = [{"from": row.gpu.uuid, "to": gpu.uuid} for row, gpu in zip(rows, chosen, strict=True)]
    after = {"state": claim.state, "node": target.name, "moves": moves, "end_seconds": end_seconds}
    audit.record(principal, "claim.move", claim, before={"state": ClaimState.ACTIVE, "node": source.name}, after=after)
    return claim


def rehearse_move_to_node(
    act: Callable[[], Claim], show: Callable[[Claim], dict[str, Any]], *, end_seconds: int = END_SECONDS
) -> dict[str, Any]:
    """Return the claim as it would be, with the GPUs from and to which it would move, and its programs' time to end."""
    moves: list[dict[str, str]] = []

    def act_and_note() -> Claim:
        row = act()
        targets = row.assignments.live().filter(counterpart__isnull=False)
        for item in targets.select_related("gpu__node", "counterpart__gpu").order_by("gpu_id"):
            assert item.counterpart is not None
            moves.append({"from": item.counterpart.gpu.uuid, "to": item.gpu.uuid, "node": item.gpu.node.name})
        return row

    shown = rehearse(act_and_note, show)
    return {**shown, "moves": moves, "end_seconds": end_seconds}


def find_move_obstacle(claim: Claim) -> str | None:
    """Return why the claim could not leave its node, whatever room others have; None if it could."""
    rows = list(claim.assignments.live().select_related("gpu__node"))
    try:
        _refuse(claim, rows)
        _find_source(claim, rows)
    except Conflict as error:
        return error.detail
    return None


def _refuse(claim: Claim, rows: Sequence[Assignment]) -> None:
    """Refuse what cannot be moved to any node."""
    refuse_state(claim, wanted=ClaimState.ACTIVE, what="moved")
    if any(item.counterpart_id is not None for item in rows):
        raise WrongState("It has just moved, and its former node still ends: wait a moment.", state=claim.state)
    refuse_kind(claim)
    if not claim.movable:
        raise CannotMove(
            "It is not declared movable: its owner does it with `gpucloud claim resize --movable true`.", of="movable"
        )
    if claim.lease_seconds is not None:
        raise CannotMove(
            "It has a lease, which its holder on the old node could no longer renew: make it without one "
            "(`gpucloud run --keep`).",
            of="lease",
        )
    if claim.borrowed_core:
        raise CannotMove("It runs on borrowed core of its GPUs, which others have not.", of="borrowed core")


def _find_source(claim: Claim, rows: Sequence[Assignment]) -> Node:
    nodes = {item.gpu.node_id: item.gpu.node for item in rows}
    if len(nodes) != 1:
        raise CannotMove(f"It is on {len(nodes)} nodes, and a move is from one to another.", nodes=len(nodes))
    (node,) = nodes.values()
    _refuse_node(node)
    return node


def _refuse_node(node: Node) -> None:
    if not node.online:
        raise NodeUnreachable(f"Node {node.name} is not connected: try again when it is back.", node=node.name)
    if not node.can_restart:
        raise CannotMove(
            f"The agent of node {node.name} is too old for moves between nodes: upgrade it.", node=node.name
        )


def _find_target(claim: Claim, source: Node, name: str) -> Node:
    """Return the node of this name if the claim can go there, whatever room it has. Raises CannotMove."""
    target = Node.objects.filter(pool=claim.pool, name=name).first()
    if target is None:
        raise CannotMove(f"Pool {claim.pool.name} has no node {name}: a claim stays in its pool.", node=name)
    if target == source:
        raise CannotMove(f"It is on node {name} already.", node=name)
    _refuse_node(target)
    if target.state != "ready":
        raise CannotMove(f"Node {name} takes no claims now: {target.state}.", node=name)
    if target.simulated != source.simulated:
        raise CannotMove(f"Only one of {source.name} and {name} has simulated GPUs.", node=name)
    return target


def _choose(claim: Claim, source: Node, target: Node | None, uuids: Sequence[str] | None) -> list[Gpu]:
    """Return GPUs of one node by the placement policy of the pool. Raises CannotMove, NoRoomToMove."""
    which = Q(node__can_restart=True, node__simulated=source.simulated) & ~Q(node=source)
    if target is not None:
        which &= Q(node=target)
    if target is not None and uuids is not None:
        _refuse_names(claim, target, uuids)
        which &= Q(uuid__in=uuids)
    devices = {device.state.uuid: device for device in read_devices(claim.pool, which)}
    fleet = [device.state for device in devices.values()]
    held = read_reserved(claim.pool, now=timezone.now()).withheld_from(claim, lambda: fleet)
    answer: Any = Fleet(fleet, read_nodes(claim.pool), policy=claim.pool.placement_policy).place(
        request_of(claim), held=held
    )
    if isinstance(answer, Refused):
        why = "; ".join(reason.detail for reason in answer.reasons) or "no node takes claims by a restart"
        nowhere = f"Node {target.name} has no" if target is not None else f"No other node of pool {claim.pool.name} has"
        raise NoRoomToMove(f"{nowhere} room for it: {why}.", pool=claim.pool.name)
    gpus = Gpu.objects.select_related("node").in_bulk([devices[uuid].pk for uuid in answer.gpus])
    return [gpus[devices[uuid].pk] for uuid in answer.gpus]


def _refuse_names(claim: Claim, target: Node, uuids: Sequence[str]) -> None:
    found = set(Gpu.objects.filter(node=target, uuid__in=uuids).values_list("uuid", flat=True))
    if missing := sorted(set(uuids) - found):
        raise CannotMove(f"Node {target.name} has no {', '.join(missing)}.", node=target.name)
    if len(found) != claim.gpu_count or len(uuids) != claim.gpu_count:
        raise CannotMove(f"It is on {claim.gpu_count} GPU(s): name as many different ones.", node=target.name)


def _take_targets(claim: Claim, rows: Sequence[Assignment], chosen: Sequence[Gpu], end_seconds: int) -> None:
    """Charge the claim's share on its new GPUs, too, and write its assignments there.

    Raises CannotMove, NoRoomToMove.
    """
    gpus = lock_gpus({gpu.pk for gpu in (*(row.gpu for row in rows), *chosen)})
    guard = Guard([gpu.pk for gpu in chosen], now=timezone.now())
    for row, target in sorted(zip(rows, chosen, strict=True), key=lambda pair: pair[1].pk):
        gpu = gpus[target.pk]
        if gpu.state != "ready":
            raise CannotMove(f"GPU {gpu.index} of node {target.node.name} takes no claims now: {gpu.state}.")
        taken = guard.admits(claim, [gpu.pk]) and capacity.take(
            gpu_id=gpu.pk, core=row.core_request, memory_mib=row.memory_mib
        )
        if not taken:
            raise NoRoomToMove(
                f"GPU {gpu.index} of node {target.node.name} has {max(0, gpu.core_free)} % core and "
                f"{gpu.memory_free_mib} MiB free that are not reserved, and {row.core_request} % and {row.memory_mib} "
                "MiB are needed.",
                node=target.node.name,
            )
        Assignment.objects.create(
            claim=claim,
            gpu=gpu,
            counterpart=row,
            core_request=row.core_request,
            core_limit=row.core_limit,
            memory_mib=row.memory_mib,
            held_core=row.core_request,
            held_memory_mib=row.memory_mib,
            generation=claim.generation + 1,
            state=AssignmentState.SUSPENDING,
            # There are no programs: it needs no driver that can suspend some.
            end_seconds=end_seconds,
        )
        row.change(end_seconds=end_seconds)
