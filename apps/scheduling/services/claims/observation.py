"""Observed state: the limits that agents report as in force. Only a confirmed report of it frees anything."""

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from agent import wire
from apps.nodes.models import Node
from apps.nodes.services import capacity
from apps.quotas.models import EventKind
from apps.scheduling.models import Assignment, AssignmentState, Claim, ClaimState
from apps.scheduling.models.orders import SuspendedBy
from apps.scheduling.providers import Progress, instance_seats, jobs, node_moves
from apps.scheduling.services.charging import states
from apps.scheduling.services.claims import suspension_reports
from apps.scheduling.services.claims.drift import take_drifts
from apps.scheduling.services.claims.lifecycle import locked, raise_frames
from gpucloud import counters
from gpucloud.fastpath.compiled_queries import compiled_query

MIB = 1 << 20


def take_observed(*, node: Node, frame: wire.Observed) -> None:
    """Bring assignments, claims, GPUs and quotas in step with the reported state; ignore old and foreign uids."""
    said = {observation.uid: observation for observation in frame.assignments}
    # Rows, not objects: an agent reports all that is in force, and most of it is no news.
    rows = map(_Known._make, _live_on(node.pk))
    news = [row.claim_id for row in rows if str(row.uid) in said and _is_news(row, said[str(row.uid)])]
    for claim_id in dict.fromkeys(news):
        take_for_claim(Claim(pk=claim_id), said)
    Node.objects.filter(pk=node.pk, observed_frame__lt=frame.frame).update(observed_frame=frame.frame)
    _take_return(node, frame)
    take_drifts(node=node, frame=frame)
    if frame.jobs and (provided := jobs.find()) is not None:
        provided.observed(node, frame.jobs)


@transaction.atomic
def _take_return(node: Node, frame: wire.Observed) -> None:
    """Let the node take claims again once its agent has ended everything that was moved away while it was lost."""
    returning = Node.objects.filter(pk=node.pk, returning_frame__lte=frame.frame)
    if not returning.exists():
        return
    live = {str(row.uid) for row in map(_Known._make, _live_on(node.pk))}
    if all(item.uid in live or item.state == "released" for item in frame.assignments):
        for row in returning.select_for_update():
            row.change(returning_frame=None)


class _Known(NamedTuple):
    """The columns that decide whether a report is news of an assignment."""

    claim_id: int
    uid: UUID
    generation: int
    observed_generation: int
    core_request: int
    held_core: int
    memory_mib: int
    held_memory_mib: int
    memory_limit_mib: int | None
    held_host_memory_mib: int
    taken_core: int
    taken_memory_mib: int
    claim__own_core: int | None
    claim__own_memory_mib: int | None
    state: str
    reason: str | None


@compiled_query
def _live_on(node_id: Any) -> QuerySet[Assignment, Any]:
    rows = Assignment.objects.filter(gpu__node=node_id).live().order_by("pk")
    return rows.values_list(*_Known._fields)


def _is_news(row: Assignment | _Known, said: wire.Observation) -> bool:
    if not row.observed_generation <= said.generation <= row.generation:
        return False  # older than the last report, or of a generation that was never wanted
    core, memory_mib = _wanted_part(row)
    shrunk = row.held_core > row.core_request or row.held_memory_mib > row.memory_mib
    shrunk = shrunk or row.taken_core > core or row.taken_memory_mib > memory_mib
    shrunk = shrunk or (row.state in IN_FORCE and row.held_host_memory_mib > suspension_reports.kept_host_mib(row))
    same = (row.observed_generation, row.state, row.reason) == (said.generation, said.state, said.reason)
    return not same or shrunk


def _wanted_part(row: Assignment | _Known) -> tuple[int, int]:
    """Return the core and MiB that its programs are to have; the claim that opens an instance has a part of it."""
    if isinstance(row, _Known):
        own_core, own_memory_mib = row.claim__own_core, row.claim__own_memory_mib
    else:
        own_core, own_memory_mib = row.claim.own_core, row.claim.own_memory_mib
    if own_core is None or own_memory_mib is None:
        return row.core_request, row.memory_mib
    return own_core, own_memory_mib


@transaction.atomic
def take_for_claim(claim: Claim, said: Mapping[str, wire.Observation]) -> None:
    """Bring the claim and its assignments in step with these observations, by the assignment's uid."""
    claim = locked(claim)
    # Without the assignments from before the claim was preempted.
    live = claim.assignments.live()
    assignments = list(live.select_related("gpu", "other_gpu", "return_gpu").order_by("gpu_id"))
    before = {item.pk: _facts(item) for item in assignments}
    elsewhere = suspension_reports.resumes_elsewhere(assignments)
    state, values, moving = _take_all(claim, assignments, said)
    changed = [item for item in assignments if _facts(item) != before[item.pk]]
    if not changed:
        return
    # Quotas before GPUs: the order of locks.
    states.charge_to(claim, states.amounts_held(assignments))
    nodes = {item.gpu.node_id for item in changed}
    freed = _write_all(claim, changed)
    if state == ClaimState.RELEASED and claim.preempt_at is not None:
        states.move(claim, ClaimState.QUEUED, assigned_at=None, **states.NOT_PREEMPTED)
    elif state == ClaimState.SUSPENDED:
        is_first = not states.was_suspended(claim)
        states.move(claim, state, **values, yields_at=None, **states.NOT_PREEMPTED)
        if is_first and claim.suspended_by == SuspendedBy.RECLAIM:
            # It waits for GPUs of its node at once, behind the claim for which it left its own.
            states.move(claim, ClaimState.RESUMING)
        elif elsewhere:
            # Refused on other GPUs, it waits for its own.
            states.move(claim, ClaimState.RESUMING, nominated_gpus=None)
    elif moving and state == ClaimState.ACTIVE and claim.state == ClaimState.RESUMING:
        states.note(claim, "moved", moves=moving)
        states.move(claim, state, EventKind.CLAIM_MOVED, **values)
    else:
        states.move(claim, state, **values)
    for node_id, memory_mib in sorted(freed.items()):
        if memory_mib:
            capacity.give_back_host_memory(node_id=node_id, memory_mib=memory_mib)
    if values:
        raise_frames(nodes)


def _take_all(claim: Claim, assignments: list[Assignment], said: Mapping[str, wire.Observation]) -> Progress:
    """Bring the unsaved rows in step with the reports; return what changes of the claim.

    There are further values if an agent refused to suspend or resume it, or its programs have left the GPUs from which
    they move: then the nodes' desired state has changed, too.
    """
    if any(item.counterpart_id for item in assignments):
        return node_moves.get().take_reports(claim, assignments, said, _take_one)
    values: dict[str, Any] = {}
    queued = claim.waits_to_resume
    moves = suspension_reports.find_moves(assignments)
    if why := suspension_reports.find_refusal(claim, assignments, said):
        values = suspension_reports.answer_refusal(claim, assignments, said, why)
    else:
        for item in assignments:
            if str(item.uid) in said:
                _take_one(item, said[str(item.uid)])
        values = suspension_reports.turn_to_targets(claim, assignments)
    suspension_reports.settle_holds(assignments)
    return Progress(_state_of(claim, assignments, queued=queued), values, moves)


TAKEN = ("taken_core", "taken_memory_mib")
FIELDS = (
    "gpu_id", "other_gpu_id", "return_gpu_id", "state", "held_core", "held_memory_mib", "held_host_memory_mib",
    "generation", "observed_generation", "in_force_at", "reason", "counterpart_id", "end_seconds", "carry",
    *TAKEN,
)  # fmt: skip


def _facts(assignment: Assignment) -> list[object]:
    return [getattr(assignment, name) for name in FIELDS]


IN_FORCE = (AssignmentState.IN_FORCE, AssignmentState.OVER_LIMIT)


def _take_one(assignment: Assignment, said: wire.Observation) -> None:
    """Bring the unsaved row in step with the report, under the claim's lock."""
    if not _is_news(assignment, said):
        return
    current = said.generation == assignment.generation
    if assignment.state == AssignmentState.RELEASING:
        if current and said.state == "released":
            assignment.state, assignment.held_core, assignment.held_memory_mib = AssignmentState.RELEASED, 0, 0
            assignment.taken_core = assignment.taken_memory_mib = 0
    elif assignment.state in suspension_reports.PUT_ASIDE_STATES:
        suspension_reports.take_report(assignment, said)
        return
    elif said.state in ("in_force", "over_limit", "failed"):
        comes_into_force = assignment.state not in IN_FORCE or assignment.observed_generation < said.generation
        assignment.state = said.state
        if current and said.state != "failed":
            _shrink(assignment, said.memory_bytes)
            if comes_into_force:
                assignment.in_force_at = timezone.now()
                # The last write was the change of its limits, for which it waited.
                waited = (assignment.in_force_at - assignment.updated_at).total_seconds()
                transaction.on_commit(partial(counters.PUSH_SECONDS.observe, waited))
    else:
        return  # the assignment is wanted, so a report of its end is outdated: the next push corrects it
    assignment.observed_generation = said.generation
    assignment.reason = said.reason


HELD = ("held_core", "held_memory_mib")


def _write_all(claim: Claim, assignments: list[Assignment]) -> dict[int, int]:
    """Save the rows, and free what they no longer hold of GPUs; return the host memory that comes free, by node."""
    core = memory_mib = 0
    # By GPU: core, memory.
    freed: dict[int, list[int]] = {}
    host: Counter[int] = Counter()
    for item in assignments:
        before = Assignment.objects.get(pk=item.pk)
        item.change(**{name: getattr(item, name) for name in FIELDS})
        core += before.taken_core - item.taken_core
        memory_mib += before.taken_memory_mib - item.taken_memory_mib
        for row, sign in ((before, 1), (item, -1)):
            host[item.gpu.node_id] += sign * row.held_host_memory_mib
            for key in row.gpus_held:
                amounts = freed.setdefault(key, [0, 0])
                freed[key] = [one + sign * getattr(row, name) for one, name in zip(amounts, HELD, strict=True)]
    if core or memory_mib:
        instance_seats.get().give_back(claim, core=core, memory_mib=memory_mib)
    # In key order, as every change of several GPUs.
    for key, (core, memory_mib) in sorted(freed.items()):
        if core or memory_mib:
            capacity.give_back(gpu_id=key, core=core, memory_mib=memory_mib)
    return dict(host)


def _shrink(assignment: Assignment, memory_bytes: int) -> None:
    """Free core as soon as the smaller share is in force, and memory when the use measured is small enough."""
    # Borrowed core is not held.
    assignment.held_core = min(assignment.held_core, assignment.core_request)
    core, memory_mib = _wanted_part(assignment)
    assignment.taken_core = min(assignment.taken_core, core)
    # What a claim uses beyond its promise it borrows, and that leaves when it is needed.
    if memory_bytes <= (assignment.memory_limit_mib or memory_mib) * MIB:
        # One in another's instance holds nothing of its GPU itself, and one that opened its instance keeps all of it.
        if assignment.claim.instance_of is not None or assignment.room_core is not None:
            # Not more than was taken: a server of the version before records nothing for one that opens its instance.
            assignment.taken_memory_mib = min(assignment.taken_memory_mib, memory_mib)
        else:
            assignment.held_memory_mib = memory_mib


def _state_of(claim: Claim, assignments: list[Assignment], *, queued: bool) -> str:
    of = {assignment.state for assignment in assignments}
    if of == {AssignmentState.RELEASED}:
        return ClaimState.RELEASED
    if state := suspension_reports.find_state(claim, assignments, queued=queued):
        return state
    if claim.state == ClaimState.RELEASING:
        return ClaimState.RELEASING
    if AssignmentState.FAILED in of:
        return ClaimState.FAILED
    if of <= {AssignmentState.IN_FORCE, AssignmentState.OVER_LIMIT}:
        return ClaimState.ACTIVE
    return claim.state
