"""Reports about claims that move to another node: changes of rows that the caller saves.

A claim that moves has two assignments for each GPU: where it is, and where it goes. Both are charged to their GPUs, and
one of them to the tenant's quota (`Assignment.counterpart`). The server alone decides which of the two nodes runs the
programs, in these steps:

1. The new node puts the claim's pages in force, suspended: no program can start there.
2. The old node lets the programs save their state and end. From then on no program can start there either.
3. The new node puts the claim in force.
4. The old node gives back what it had.

Whatever a node refuses before the end of step 3 leads back: first the new node confirms that nothing of the claim is
left on it, then the old one puts the claim in force again.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import UNSET

from agent import wire
from apps.nodes.models import Node
from apps.quotas.models import EventKind
from apps.scheduling.models import Assignment, AssignmentState, Claim, ClaimState
from apps.scheduling.providers import Progress
from apps.scheduling.services.charging import states
from apps.scheduling.services.claims.observation import take_for_claim
from apps.scheduling.services.claims.suspension_reports import IN_FORCE, MOVE_REFUSED

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
        values = _go_on(claim, homes, others)
        if targets and not any(item.is_target for item in targets):
            moves = _pairs(homes, targets)
            homes = targets
    for item in others + homes:
        if item.state == AssignmentState.RELEASED:
            item.counterpart = None
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
    return None


def _go_back(claim: Claim, homes: Sequence[Assignment], targets: Sequence[Assignment], why: str) -> dict[str, Any]:
    """Give up the new place. Programs that stand still go on once nothing can run there."""
    may_run_there = claim.state == ClaimState.RESUMING
    for item in targets:
        item.state = AssignmentState.RELEASING
        item.generation += 1
    if not may_run_there:
        _let_run(claim, homes)
    states.note(claim, "suspend-failed", action="move", why=why)
    states.tell_of(claim, EventKind.CLAIM_SUSPEND_FAILED, action="move", why=why)
    return _changed(claim, reasons=[{"code": MOVE_REFUSED, "gpus": 0, "detail": why}])


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
        item.generation = claim.generation + 1


def _settle_at(homes: Sequence[Assignment], targets: Sequence[Assignment]) -> None:
    """Let the new place be the claim's, and the old one end."""
    by_key: dict[int | None, Assignment] = {item.pk: item for item in homes}
    for item in targets:
        home = by_key[item.counterpart_id]
        item.counterpart, home.counterpart = None, item
        home.state = AssignmentState.RELEASING
        home.end_seconds = None
        home.generation += 1


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


def refuse(claim: Claim, why: str) -> None:
    """Let the claim go back to where it was, as if its new node had refused it."""
    rows = claim.assignments.live().filter(counterpart__isnull=False)
    take_for_claim(claim, {str(item.uid): _report(item, "suspending", why) for item in rows if item.is_target})


def _report(item: Assignment, state: wire.AssignmentState, why: str | None = None) -> wire.Observation:
    refused = UNSET if why is None else why
    return wire.Observation(uid=str(item.uid), generation=item.generation, state=state, suspend_refused=refused)
