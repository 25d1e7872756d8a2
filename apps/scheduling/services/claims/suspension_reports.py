"""Reports about claims that are being suspended, are suspended, or resume: changes of rows that the caller saves.

The GPUs are free once all of the claim's assignments were observed suspended, and the host memory once all are in
force. Until then an agent that refuses can go back, because nothing was given to others. A refusal is answered by a
generation that wants what is; nothing is tried again by itself. A claim that moves holds its share on both GPUs
until it is in force on one of them, so it can go back from anywhere.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from django.utils import timezone
from msgspec import UNSET

from agent import wire
from apps.quotas.models import EventKind
from apps.scheduling.models import Assignment, AssignmentState, Claim, ClaimState
from apps.scheduling.models.assignment import WANTED_SUSPENDED
from apps.scheduling.models.claim import PUT_ASIDE
from apps.scheduling.models.share import borrowable_mib
from apps.scheduling.services.charging import states

MIB = 1 << 20
IN_FORCE = frozenset({AssignmentState.IN_FORCE, AssignmentState.OVER_LIMIT})
# States in which reports are taken by `take_report`.
PUT_ASIDE_STATES = frozenset({AssignmentState.SUSPENDING, AssignmentState.SUSPENDED, AssignmentState.RESUMING})
# Codes of the reasons that a refused claim shows until it is suspended or resumed again.
SUSPEND_REFUSED, RESUME_REFUSED, MOVE_REFUSED = "suspend-refused", "resume-refused", "move-refused"
# Of a move to another node that was to carry running programs.
CARRY_REFUSED = "carry-refused"

Said = Mapping[str, wire.Observation]


def take_report(assignment: Assignment, said: wire.Observation) -> bool:
    """Bring the unsaved row in step with a report of its generation; return False if the report is outdated."""
    if said.generation != assignment.generation:
        return False
    if assignment.state == AssignmentState.RESUMING:
        if said.state in (*IN_FORCE, AssignmentState.FAILED):
            assignment.state = said.state
            assignment.in_force_at = timezone.now()
    elif said.state == "suspended":
        assignment.state = AssignmentState.SUSPENDED
        # A place to which the claim moves keeps the room for what is to come.
        if said.saved_bytes is not UNSET and not assignment.is_target:
            # At least 1: a node that carries a suspended claim is in use, whatever was saved.
            saved_mib = max(1, -(-said.saved_bytes // MIB))
            assignment.held_host_memory_mib = min(assignment.held_host_memory_mib, saved_mib)
    assignment.observed_generation = said.generation
    assignment.reason = said.reason
    return True


def find_refusal(claim: Claim, assignments: Sequence[Assignment], said: Said) -> str | None:
    """Return why the agent could not suspend or resume the claim; None if it did not refuse."""
    if claim.state not in (ClaimState.SUSPENDING, ClaimState.RESUMING):
        return None
    changes_gpus = bool(find_moves(assignments)) or resumes_elsewhere(assignments)
    for assignment, report in _current(assignments, said):
        if claim.state == ClaimState.RESUMING and changes_gpus and report.state != "suspended":
            # Some may be on the new GPU already: the agent tries again until all are, or none is.
            continue
        if assignment.state in PUT_ASIDE_STATES and report.suspend_refused is not UNSET:
            return report.suspend_refused
        if assignment.state == AssignmentState.SUSPENDING and report.state == "failed":
            return report.reason or "The agent could not put it in force."
    return None


def answer_refusal(claim: Claim, assignments: Sequence[Assignment], said: Said, why: str) -> dict[str, Any]:
    """Want what is, under a new generation; return the values that the caller saves with the claim."""
    suspends, moves = claim.state == ClaimState.SUSPENDING, bool(find_moves(assignments))
    elsewhere = resumes_elsewhere(assignments)
    reports = {assignment.pk: report.state for assignment, report in _current(assignments, said)}
    for assignment in assignments:
        state = reports.get(assignment.pk)
        if suspends:
            assignment.state = state if state in IN_FORCE else AssignmentState.RESUMING
            if state in IN_FORCE:
                # Its programs never left.
                assignment.held_host_memory_mib = borrowable_mib(assignment)
        elif moves:
            # Back to where it came from, whose room it still holds.
            assignment.state = AssignmentState.RESUMING
            assignment.gpu = assignment.other_gpu or assignment.gpu
        else:
            done = state == "suspended"
            assignment.state = AssignmentState.SUSPENDED if done else AssignmentState.SUSPENDING
            if elsewhere:
                # From now on it waits for the GPUs on which its programs are.
                assignment.gpu = assignment.return_gpu or assignment.gpu
                assignment.return_gpu = assignment.gpu
        if state is not None:
            assignment.observed_generation = assignment.generation
        assignment.generation += 1
        assignment.reason = assignment.other_gpu = None
    moves = moves or elsewhere
    action = "move" if moves else "suspend" if suspends else "resume"
    states.note(claim, "suspend-failed", action=action, why=why)
    states.tell_of(claim, EventKind.CLAIM_SUSPEND_FAILED, action=action, why=why)
    code = MOVE_REFUSED if moves else SUSPEND_REFUSED if suspends else RESUME_REFUSED
    reason = {"code": code, "gpus": 0, "detail": why}
    return {"generation": claim.generation + 1, "reasons": [reason]}


def find_moves(assignments: Sequence[Assignment]) -> list[dict[str, str]]:
    """Return from which GPU to which each of these assignments moves: a list of uuids, empty if none does."""
    return [
        {"from": item.gpu.uuid, "to": item.other_gpu.uuid}
        if item.state in WANTED_SUSPENDED
        else {"from": item.other_gpu.uuid, "to": item.gpu.uuid}
        for item in assignments
        if item.other_gpu is not None
    ]


def resumes_elsewhere(assignments: Sequence[Assignment]) -> bool:
    """Return True if the claim resumes on other GPUs than those on which it was suspended."""
    return any(item.return_gpu_id not in (None, item.gpu_id) for item in assignments)


def turn_to_targets(claim: Claim, assignments: Sequence[Assignment]) -> dict[str, Any]:
    """Want a claim that moves on its new GPUs once all of it has left the old ones; return the claim's new values."""
    left = all(item.state == AssignmentState.SUSPENDED for item in assignments)
    if claim.state != ClaimState.SUSPENDING or not left or not find_moves(assignments):
        return {}
    for item in assignments:
        if item.other_gpu is not None:
            item.gpu, item.other_gpu = item.other_gpu, item.gpu
        item.state = AssignmentState.RESUMING
        item.generation += 1
    return {"generation": claim.generation + 1}


def settle_holds(assignments: Sequence[Assignment]) -> None:
    """Free the GPUs if all of the claim is suspended, the host memory and GPUs left by a move if all is in force."""
    of = {assignment.state for assignment in assignments}
    for assignment in assignments:
        if of == {AssignmentState.SUSPENDED}:
            assignment.held_core = assignment.held_memory_mib = 0
        elif of <= IN_FORCE or assignment.state == AssignmentState.RELEASED:
            assignment.held_host_memory_mib = kept_host_mib(assignment)
            # Programs that came from a node that was forgotten meanwhile are there.
            assignment.other_gpu = assignment.carry = None
            if resumes_elsewhere([assignment]):
                assignment.return_gpu = None


def kept_host_mib(row: Any) -> int:
    """Return the host memory that an assignment in force keeps: less than it holds once less is in force."""
    if row.state == AssignmentState.RELEASED:
        return 0
    # Above its limit, what it borrowed may still be in host memory.
    if row.observed_generation < row.generation or row.state == AssignmentState.OVER_LIMIT:
        return int(row.held_host_memory_mib)
    return min(int(row.held_host_memory_mib), borrowable_mib(row))


def find_state(claim: Claim, assignments: Sequence[Assignment], *, queued: bool) -> str | None:
    """Return the state of a claim that is put aside, by its assignments; None if it is not put aside.

    `queued`: it waits in the queue to resume.
    """
    if claim.state not in PUT_ASIDE:
        return None
    of = {assignment.state for assignment in assignments}
    if AssignmentState.FAILED in of:
        return ClaimState.FAILED
    if of <= IN_FORCE:
        return ClaimState.ACTIVE
    if of == {AssignmentState.SUSPENDED}:
        return ClaimState.RESUMING if queued else ClaimState.SUSPENDED
    return ClaimState.RESUMING if AssignmentState.RESUMING in of else ClaimState.SUSPENDING


def _current(assignments: Sequence[Assignment], said: Said) -> list[tuple[Assignment, wire.Observation]]:
    """Return the assignments that are reported at their generation, with the reports."""
    found = [(item, said.get(str(item.uid))) for item in assignments]
    return [(item, report) for item, report in found if report is not None and report.generation == item.generation]
