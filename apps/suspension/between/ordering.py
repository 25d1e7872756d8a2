"""Orders to move a claim to another node: its running programs are carried there, or end and start again.

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
from apps.scheduling.services.fleet.devices import RUNS_JOBS, read_devices, read_nodes
from apps.scheduling.services.fleet.reserved import Guard, read_reserved
from apps.scheduling.services.previews.dry_runs import rehearse
from apps.suspension.between import carrying
from apps.suspension.moving import CannotMove, NoRoomToMove, lock_gpus, refuse_other_back_end
from apps.suspension.services import NodeUnreachable, refuse_back_ends, refuse_kind, refuse_state
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
    """Have the claim leave its node for another one. Repeatable while it moves.

    `node`: its name; None: the placement policy of the pool chooses. `gpus`: the uuids of GPUs of that node; None: the
    policy chooses. `restart`: its programs end, after `end_seconds` at most to save their state, and start again there;
    else they are carried, and go on. Raises WrongState, CannotSuspend (for its kind), NodeUnreachable, CannotMove,
    NoRoomToMove, PreconditionFailed, RoleMissing; also, if they are carried, NoHostMemory, QuotaExceeded (of host
    memory).
    """
    principal.require_role(claim.tenant, "member")
    claim = locked(claim, versions)
    rows = list(claim.assignments.live().select_related("gpu__node").order_by("gpu_id"))
    if claim.state in (ClaimState.SUSPENDING, ClaimState.RESUMING) and any(item.is_target for item in rows):
        return claim
    _refuse(claim, rows)
    source = _find_source(claim, rows)
    aim = _find_target(claim, source, node) if node is not None else None
    if not restart:
        _refuse_carry(claim, source, aim)
    chosen = _choose(claim, source, aim, gpus, carries=not restart)
    target = chosen[0].node
    # The order of locks: quotas, GPUs, nodes.
    if not restart:
        carrying.charge_quota(claim, rows, principal)
    targets = _take_targets(claim, rows, chosen, {"end_seconds": end_seconds} if restart else {"carry": {}})
    if not restart:
        carrying.take_memory([*rows, *targets])
    states.move(claim, ClaimState.SUSPENDING, generation=claim.generation + 1, reasons=[])
    raise_frames({target.pk})
    _record(principal, claim, rows, chosen, {"end_seconds": end_seconds} if restart else {"carry": True})
    return claim


def _record(
    principal: Principal, claim: Claim, rows: Sequence[Assignment], chosen: Sequence[Gpu], how: dict[str, Any]
) -> None:
    moves = [{"from": row.gpu.uuid, "to": gpu.uuid} for row, gpu in zip(rows, chosen, strict=True)]
    before = {"state": ClaimState.ACTIVE, "node": rows[0].gpu.node.name}
    after = {"state": claim.state, "node": chosen[0].node.name, "moves": moves, **how}
    audit.record(principal, "claim.move", claim, before=before, after=after)


def rehearse_move_to_node(
    act: Callable[[], Claim], show: Callable[[Claim], dict[str, Any]], *, end_seconds: int | None = None
) -> dict[str, Any]:
    """Return the claim as it would be, with the GPUs from and to which it would move, and how.

    `end_seconds`: the time to end, of programs that restart; else None, and `pause_seconds` is the longest pause to
    expect. `not_carried`: why running programs could not be carried there instead.
    """
    moves: list[dict[str, str]] = []
    why: list[str | None] = []
    pauses: list[int] = []

    def act_and_note() -> Claim:
        row = act()
        targets = row.assignments.live().filter(counterpart__isnull=False)
        for item in targets.select_related("gpu__node", "counterpart__gpu").order_by("gpu_id"):
            assert item.counterpart is not None
            moves.append({"from": item.counterpart.gpu.uuid, "to": item.gpu.uuid, "node": item.gpu.node.name})
            why.append(carrying.find_carry_obstacle(row, item.counterpart.gpu.node, item.gpu.node))
        pauses.append(carrying.pause_seconds(row))
        return row

    shown = rehearse(act_and_note, show)
    restarts = end_seconds is not None
    return {
        **shown,
        "moves": moves,
        "end_seconds": end_seconds,
        "pause_seconds": None if restarts else pauses[0],
        "not_carried": why[0] if why else None,
    }


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
    refuse_back_ends(item.gpu for item in rows)
    if not claim.movable:
        raise CannotMove(
            "It is not declared movable: its owner does it with `gpucloud claim resize --movable true`.", of="movable"
        )
    if RUNS_JOBS.items() <= claim.node_selector.items():
        raise CannotMove("The agent of its node keeps its job's program: stop the job, and run it again.", of="job")
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


def _refuse_carry(claim: Claim, source: Node, target: Node | None) -> None:
    """Refuse to carry running programs between nodes that cannot; say what could be done instead."""
    if (why := carrying.find_carry_obstacle(claim, source, target)) is not None:
        raise CannotMove(
            f"Its running programs cannot be carried. {why} Or order a restart: its programs get SIGUSR1 and time to "
            "save their state, end, and are started there again by whoever started them.",
            of="restart",
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


def _choose(
    claim: Claim, source: Node, target: Node | None, uuids: Sequence[str] | None, *, carries: bool
) -> list[Gpu]:
    """Return GPUs of one node by the placement policy of the pool. Raises CannotMove, NoRoomToMove."""
    which = carrying.can_carry(wanted=carries) & Q(node__simulated=source.simulated) & ~Q(node=source)
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
        why = "; ".join(reason.detail for reason in answer.reasons) or "no node takes such claims"
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


def _take_targets(
    claim: Claim, rows: Sequence[Assignment], chosen: Sequence[Gpu], how: dict[str, Any]
) -> list[Assignment]:
    """Charge the claim's share on its new GPUs, too; write and return its assignments there.

    `how`: `end_seconds`, or `carry` if running programs are carried. Raises CannotMove, NoRoomToMove.
    """
    targets = []
    gpus = lock_gpus({gpu.pk for gpu in (*(row.gpu for row in rows), *chosen)})
    guard = Guard([gpu.pk for gpu in chosen], now=timezone.now())
    for row, target in sorted(zip(rows, chosen, strict=True), key=lambda pair: pair[1].pk):
        gpu = gpus[target.pk]
        if gpu.state != "ready":
            raise CannotMove(f"GPU {gpu.index} of node {target.node.name} takes no claims now: {gpu.state}.")
        refuse_other_back_end(row.gpu, gpu)
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
        targets.append(_write_target(claim, row, gpu, how))
    return targets


def _write_target(claim: Claim, row: Assignment, gpu: Gpu, how: dict[str, Any]) -> Assignment:
    # Of programs that are carried, both nodes have a copy in their memory.
    copied = {"held_host_memory_mib": row.held_memory_mib} if "carry" in how else {}
    row.change(end_seconds=how.get("end_seconds"), **copied)
    return Assignment.objects.create(
        claim=claim,
        gpu=gpu,
        counterpart=row,
        core_request=row.core_request,
        core_limit=row.core_limit,
        memory_mib=row.memory_mib,
        held_core=row.core_request,
        held_memory_mib=row.memory_mib,
        generation=claim.generation + 1,
        # There are no programs to suspend.
        state=AssignmentState.SUSPENDING,
        **how,
        **copied,
    )
