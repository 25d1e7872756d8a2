"""Reports about claims that move to another node: changes of rows that the caller saves.

A claim that moves has two assignments for each GPU: where it is, and where it goes. Both are charged to their GPUs, and
one of them to the tenant's quota (`Assignment.counterpart`). The server alone decides which of the two nodes runs the
programs, in these steps:

1. The new node puts the claim's pages in force, suspended: no program can start there.
2. The old node lets the programs save their state and end. From then on no program can start there either.
3. The new node puts the claim in force.
4. The old node gives back what it had.

Running programs are carried in the same steps (`Assignment.carry`). In step 1 the new node also offers a ticket. In
step 2 the old one suspends the programs, sends them by it, and keeps its own copy, stopped. In step 3 the new one
restores them. The copies take memory of both nodes, which is charged to both from the order on.

Whatever a node refuses before the end of step 3 leads back: first the new node confirms that nothing of the claim is
left on it, then the old one puts the claim in force again.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from agent import wire
from apps.nodes.models import Node
from apps.quotas.models import EventKind
from apps.scheduling.models import Assignment, AssignmentState, Claim, ClaimState
from apps.scheduling.providers import Progress
from apps.scheduling.services.charging import states
from apps.scheduling.services.claims.lifecycle import raise_frames
from apps.scheduling.services.claims.observation import take_for_claim
from apps.scheduling.services.claims.suspension_reports import CARRY_REFUSED, IN_FORCE, MOVE_REFUSED

Said = Mapping[str, wire.Observation]
MOVING = (ClaimState.SUSPENDING, ClaimState.RESUMING)


def take_reports(
    claim: Claim,
    assignments: Sequence[Assignment],
    said: Said,
    take: Callable[[Assignment, wire.Observation], None],
) -> Progress:
    """Bring the unsaved rows of a claim that moves in step with the reports; see `apps.scheduling.providers`."""
    homes = [item for item in assignments if item.counterpart_id is None]
    others = [item for item in assignments if item.counterpart_id is not None]
    targets = [item for item in others if item.is_target]
    moves: list[dict[str, str]] = []
    if targets and (why := _find_refusal(claim, homes, targets, said)):
        values = _go_back(claim, homes, targets, why)
    else:
        for item in assignments:
            if (report := said.get(str(item.uid))) is not None:
                take(item, report)
                _take_ticket(item, report)
        is_left_behind = claim.state == ClaimState.RESUMING and _are_gone(homes, said)
        values = _leave_behind(homes, targets) if is_left_behind else _go_on(claim, homes, others)
        if targets and not any(item.is_target for item in targets):
            moves = _pairs(homes, targets)
            homes, others = targets, homes
    _settle_host_memory(homes, others)
    for item in others + homes:
        if item.state == AssignmentState.RELEASED:
            item.counterpart = item.carry = None
    return Progress(_find_state(claim, assignments), values, moves)


def _find_refusal(claim: Claim, homes: Sequence[Assignment], targets: Sequence[Assignment], said: Said) -> str | None:
    """Return why the move cannot go on; None if nothing is against it."""
    if claim.state not in MOVING:
        return None
    for item in (*targets, *homes):
        report = said.get(str(item.uid))
        if report is None or report.generation != item.generation:
            continue
        waits = item.is_target or item.state == AssignmentState.SUSPENDING
        if waits and report.suspend_refused:
            return report.suspend_refused
        if waits and report.state == "failed":
            return report.reason or f"Node {item.gpu.node.name} could not put it in force."
        if item.carry == {} and report.state == "suspended" and report.ticket is UNSET:
            return f"The agent of node {item.gpu.node.name} began anew before the programs came: try again."
    return None


def _are_gone(homes: Sequence[Assignment], said: Said) -> bool:
    """Return True if the old node, from which the programs have gone, will not report again (`leave_node`)."""
    reports = [said.get(str(item.uid)) for item in homes if item.state == AssignmentState.SUSPENDED]
    return bool(reports) and all(one is not None and one.state == "released" for one in reports)


def _take_ticket(item: Assignment, report: wire.Observation) -> None:
    """Keep the ticket that the new node offers, the first one: the old node is told one only."""
    if item.is_target and item.carry == {} and item.state == AssignmentState.SUSPENDED and report.ticket is not UNSET:
        item.carry = msgspec.to_builtins(report.ticket)


def _go_back(claim: Claim, homes: Sequence[Assignment], targets: Sequence[Assignment], why: str) -> dict[str, Any]:
    """Give up the new place. Programs that stand still go on once nothing can run there."""
    may_run_there = claim.state == ClaimState.RESUMING
    code = MOVE_REFUSED if targets[0].carry is None else CARRY_REFUSED
    for item in targets:
        item.state = AssignmentState.RELEASING
        item.generation += 1
    if not may_run_there:
        _let_run(claim, homes)
    states.note(claim, "suspend-failed", action="move", why=why)
    states.tell_of(claim, EventKind.CLAIM_SUSPEND_FAILED, action="move", why=why)
    return _changed(claim, reasons=[{"code": code, "gpus": 0, "detail": why}])


def _go_on(claim: Claim, homes: Sequence[Assignment], others: Sequence[Assignment]) -> dict[str, Any]:
    """Begin the next step if the present one is done everywhere; return further values of the claim."""
    targets = [item for item in others if item.is_target]
    here, there = {item.state for item in homes}, {item.state for item in targets}
    if claim.state == ClaimState.RESUMING and not targets:
        # It went back.
        if here == {AssignmentState.SUSPENDED} and all(item.state == AssignmentState.RELEASED for item in others):
            _let_run(claim, homes)
            return _changed(claim)
    elif claim.state == ClaimState.SUSPENDING and there == {AssignmentState.SUSPENDED}:
        if here <= IN_FORCE:
            for item in homes:
                item.state = AssignmentState.SUSPENDING
                item.generation = claim.generation + 1
                item.carry = targets[0].carry
            return _changed(claim)
        if here == {AssignmentState.SUSPENDED}:
            _let_run(claim, targets)
            return _changed(claim)
    elif claim.state == ClaimState.RESUMING and there <= IN_FORCE:
        _settle_at(homes, targets)
        return {"reasons": []}
    return {}


def _let_run(claim: Claim, items: Sequence[Assignment]) -> None:
    """Want the claim in force here; where it is, it stays so."""
    for item in items:
        if item.state not in IN_FORCE:
            item.state = AssignmentState.RESUMING
        item.end_seconds = None
        if not item.is_target:
            item.carry = None
        item.generation = claim.generation + 1


def _settle_at(homes: Sequence[Assignment], targets: Sequence[Assignment]) -> None:
    """Let the new place be the claim's, and the old one end."""
    by_key: dict[int | None, Assignment] = {item.pk: item for item in homes}
    for item in targets:
        home = by_key[item.counterpart_id]
        item.counterpart, home.counterpart = None, item
        item.carry = home.carry = None
        home.state = AssignmentState.RELEASING
        home.end_seconds = None
        home.generation += 1


def _leave_behind(homes: Sequence[Assignment], targets: Sequence[Assignment]) -> dict[str, Any]:
    """Let the new place be the claim's before it is in force there: the old node gives nothing back any more."""
    is_carried = any(item.carry is not None for item in targets)
    _settle_at(homes, targets)
    for item in homes:
        item.state, item.held_core, item.held_memory_mib = AssignmentState.RELEASED, 0, 0
    for item in targets:
        # They are yet to be restored.
        item.carry = {} if is_carried else None
    return {}


def _settle_host_memory(homes: Sequence[Assignment], others: Sequence[Assignment]) -> None:
    """Give back host memory that no programs, and no images of them, are in or come to."""
    comes = any(item.is_target for item in others)
    for item in (*homes, *others):
        is_back = item.state in IN_FORCE and not comes
        if item.state == AssignmentState.RELEASED or is_back:
            item.held_host_memory_mib = 0
    for item in others:
        home = next((one for one in homes if one.pk == item.counterpart_id), None)
        if item.is_target and home is not None and home.state == AssignmentState.SUSPENDED:
            # As much comes as was saved.
            item.held_host_memory_mib = min(item.held_host_memory_mib, home.held_host_memory_mib)


def _changed(claim: Claim, **values: Any) -> dict[str, Any]:
    return {"generation": claim.generation + 1, **values}


def _pairs(homes: Sequence[Assignment], targets: Sequence[Assignment]) -> list[dict[str, str]]:
    left = {item.counterpart_id: item for item in homes}
    return [
        {"from": left[item.pk].gpu.uuid, "to": item.gpu.uuid, "node": item.gpu.node.name}
        for item in targets
        if item.pk in left
    ]


def _find_state(claim: Claim, assignments: Sequence[Assignment]) -> str:
    """Return the claim's state by its assignments."""
    if all(item.state == AssignmentState.RELEASED for item in assignments):
        return ClaimState.RELEASED
    if claim.state == ClaimState.RELEASING:
        return ClaimState.RELEASING
    here = {
        item.state for item in assignments if item.counterpart_id is None and item.state != AssignmentState.RELEASED
    }
    there = {item.state for item in assignments if item.is_target}
    if AssignmentState.FAILED in here:
        return ClaimState.FAILED
    if claim.state not in MOVING and not here <= IN_FORCE:
        return claim.state
    if there:
        return ClaimState.RESUMING if there & {AssignmentState.RESUMING, *IN_FORCE} else ClaimState.SUSPENDING
    return ClaimState.ACTIVE if here <= IN_FORCE else ClaimState.RESUMING


def leave_node(node: Node) -> None:
    """Let all moves go on without this node, which will not report again; see `apps.scheduling.providers`."""
    on_it = Assignment.objects.filter(gpu__node=node, counterpart__isnull=False).live()
    claims = Claim.objects.filter(assignments__in=on_it).distinct().order_by("pk")
    for claim in list(claims):
        refuse(claim, f"Node {node.name} was forgotten.")
        gone = {str(item.uid): _report(item, "released") for item in on_it.filter(claim=claim)}
        take_for_claim(claim, gone)
    leave_home(node)
    homes = Assignment.objects.filter(gpu__node=node, counterpart=None).live()
    for target in Assignment.objects.filter(counterpart__in=homes).live().select_related("gpu").order_by("pk"):
        # Its claim ends with the node on which its programs are.
        target.change(state=AssignmentState.RELEASING, generation=target.generation + 1, carry=None)
        raise_frames({target.gpu.node_id})


def leave_home(node: Node) -> bool:
    """Let claims that have gone from this node go on without it; see `apps.scheduling.providers`."""
    homes = Assignment.objects.filter(
        gpu__node=node, counterpart=None, state=AssignmentState.SUSPENDED, claim__state=ClaimState.RESUMING
    )
    targets = Assignment.objects.filter(counterpart__in=homes).live().exclude(state=AssignmentState.RELEASING)
    claims = list(Claim.objects.filter(assignments__in=targets).distinct().order_by("pk"))
    for claim in claims:
        take_for_claim(claim, {str(item.uid): _report(item, "released") for item in homes.filter(claim=claim)})
    return bool(claims)


def refuse(claim: Claim, why: str) -> None:
    """Let the claim go back to where it was, as if its new node had refused it."""
    rows = claim.assignments.live().filter(counterpart__isnull=False)
    take_for_claim(claim, {str(item.uid): _report(item, "suspending", why) for item in rows if item.is_target})


def _report(item: Assignment, state: wire.AssignmentState, why: str | None = None) -> wire.Observation:
    refused = UNSET if why is None else why
    return wire.Observation(uid=str(item.uid), generation=item.generation, state=state, suspend_refused=refused)
