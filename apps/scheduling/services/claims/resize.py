"""Live reallocation: new limits for a claim, in the same process, without a restart.

Growing charges quota and GPUs in this transaction or changes nothing. Shrinking is wanted at once and given back when
the agent has confirmed it (`observation`): until then somebody else's memory would not be there yet.
"""

from typing import Any

from django.db import transaction
from django.utils import timezone

from apps.nodes.services import capacity
from apps.quotas.models import Resource
from apps.quotas.principals import Principal
from apps.quotas.services import audit, limit_ranges
from apps.scheduling.models import Assignment, Claim, ClaimState
from apps.scheduling.models.claim import PLACED
from apps.scheduling.models.share import borrowable_mib
from apps.scheduling.providers import instance_seats
from apps.scheduling.services.charging import borrowing, states
from apps.scheduling.services.charging.budgets import refuse_spent
from apps.scheduling.services.claims import isolation, lent_memory, remote_use
from apps.scheduling.services.claims.lifecycle import (
    WrongState,
    all_limits,
    limits,
    locked,
    raise_frames,
    refuse_impossible,
    refuse_low_limit,
)
from apps.scheduling.services.claims.spec import ClaimChanges
from apps.scheduling.services.fleet.reserved import Guard
from gpucloud.api import etags
from gpucloud.errors import Conflict

# What can be changed live beside the limits.
UNCHARGED = ("weight", "best_effort", "rebalance", "movable", "remote", "schedule", *isolation.OWN_PART)
# On them depends what a claim may borrow.
BORROWING = frozenset({"memory_mib", "memory_limit_mib", "best_effort", "schedule"})


class NoRoom(Conflict, code="no-room", title="The GPU has no room for this"):
    """The GPU that carries the claim has no room for more."""


@transaction.atomic
def resize_claim(
    *, principal: Principal, claim: Claim, changes: ClaimChanges, versions: etags.Versions = None
) -> Claim:
    """Change a live claim. Raises WrongState, NoRoom, QuotaExceeded, LimitBelowRequest, OutOfRange, BudgetExceeded."""
    principal.require_role(claim.tenant, "member")
    claim = locked(claim, versions)
    aside = claim.state == ClaimState.SUSPENDED or claim.waits_to_resume
    if not claim.waiting and not aside and claim.state not in PLACED:
        raise WrongState(f"The claim is {claim.state}: only a live claim can be resized.", state=claim.state)
    before = {name: getattr(claim, name) for name in (*all_limits(claim), *UNCHARGED)}
    after = _wanted(claim, before, changes.given())
    if after == before:
        return claim
    changed = {name: after[name] for name in after if after[name] != before[name]}
    isolation.refuse_change(claim, changed)
    # What stays as it was may be outside of a range that was set later.
    limit_ranges.check(claim.tenant, claim.pool, changed)
    for name, value in after.items():
        setattr(claim, name, value)
    _refuse_wrong(claim, before, changed)
    if after["core_request"] > before["core_request"]:
        refuse_spent(claim.tenant)
    if claim.instance_of is not None or claim.own_core is not None:
        _resize_inside(claim)
    elif aside:
        _resize_suspended(claim)
    elif claim.waiting:
        _charge_waiting(claim, principal)
    else:
        _resize_assignments(claim, principal, becomes_firm=before["best_effort"] > after["best_effort"])
    # A limit that is set here is what was asked for, whatever the rebalancer made of another.
    asked = claim.asked_core_limit if after["core_limit"] == before["core_limit"] else None
    # Another schedule gives its own notice.
    notice = {"suspends_at": None} if after["schedule"] != before["schedule"] else {}
    states.move(claim, claim.state, generation=claim.generation + 1, asked_core_limit=asked, **notice, **after)
    audit.record(principal, "claim.resize", claim, before=before, after=after)
    return claim


def _wanted(claim: Claim, before: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    wanted = {**before, **values}
    if "core_limit" not in values and claim.core_limit == claim.core_request:
        # A limit that was the request follows it; one that was set stays.
        wanted["core_limit"] = wanted["core_request"]
    refuse_low_limit(wanted["core_request"], wanted["core_limit"])
    return wanted


def _refuse_wrong(claim: Claim, before: dict[str, Any], changed: dict[str, Any]) -> None:
    """Refuse what the claim, as it becomes, cannot be. Raises WrongMemoryLimit, NodeUnreachable, ImpossibleClaim."""
    if BORROWING & changed.keys():
        lent_memory.refuse_wrong(claim)
    remote_use.refuse_unreachable(claim, changed)
    more = "remote" in changed or any(changed.get(name, 0) > before[name] for name in ("core_request", "memory_mib"))
    if more and claim.instance_of is None:
        refuse_impossible(claim)


def _resize_inside(claim: Claim) -> None:
    """Want other limits of a claim in an opened instance, or another own part of the claim that opened it.

    It takes more of the instance now, and less when that is in force.
    """
    if claim.instance_of is not None:
        isolation.refuse_beyond(Claim.objects.get(uid=claim.instance_of), limits(claim))
    assignments = list(claim.assignments.live().select_related("gpu"))
    instance_seats.get().resize(claim, assignments)
    for assignment in assignments:
        assignment.change(
            **limits(claim),
            taken_core=assignment.taken_core,
            taken_memory_mib=assignment.taken_memory_mib,
            generation=assignment.generation + 1,
        )
    raise_frames({assignment.gpu.node_id for assignment in assignments})


def _charge_waiting(claim: Claim, principal: Principal) -> None:
    if any(claim.charged.values()):
        target = claim.amounts
        states.charge_to(claim, target, principal=principal)


def _resize_suspended(claim: Claim) -> None:
    """Want other limits of a claim that has no share of its GPUs now: it is charged when it resumes."""
    assignments = list(claim.assignments.live().select_related("gpu").order_by("gpu_id"))
    for assignment in assignments:
        assignment.change(**all_limits(claim), generation=assignment.generation + 1)
    raise_frames({assignment.gpu.node_id for assignment in assignments})


def _resize_assignments(claim: Claim, principal: Principal, *, becomes_firm: bool) -> None:
    # Not what it leaves behind on a node from which it has moved.
    live = claim.assignments.filter(counterpart=None).exclude(state="released")
    assignments = list(live.select_related("gpu").order_by("gpu_id"))
    resized = any(assignment.core_request != claim.core_request for assignment in assignments)
    # A guarantee cannot stand on what is guaranteed to another: what it borrows it has to have of its own.
    owns = becomes_firm and claim.borrowed_core > 0
    grown = [_grown(assignment, claim, owns=owns) for assignment in assignments]
    # Quotas before GPUs: the order of locks.
    states.charge_to(claim, _at_least(_target(claim, assignments), claim.charged), principal=principal)
    if owns:
        borrowing.give_back(claim)
    _resize_loans(claim, resized=resized)
    for assignment in assignments:
        assignment.memory_mib, assignment.memory_limit_mib = claim.memory_mib, claim.memory_limit_mib
    for assignment, (core, memory_mib) in zip(assignments, grown, strict=True):
        _take(assignment, core, memory_mib)
    lent_memory.take_host_memory(assignments)
    for assignment in assignments:
        assignment.change(
            **all_limits(claim),
            held_core=assignment.held_core,
            held_memory_mib=assignment.held_memory_mib,
            held_host_memory_mib=assignment.held_host_memory_mib,
            generation=assignment.generation + 1,
        )
    if any(core or memory_mib for core, memory_mib in grown) or becomes_firm:
        _refuse_reserved(claim, assignments)
    raise_frames({assignment.gpu.node_id for assignment in assignments})


def _target(claim: Claim, assignments: list[Assignment]) -> dict[str, int]:
    """Return what the grown assignments charge, with the host memory for what the claim may borrow from now on."""
    host_mib = sum(max(row.held_host_memory_mib, borrowable_mib(claim)) for row in assignments)
    return {**states.amounts_held(assignments), Resource.HOST_MEMORY_MIB: host_mib}


def _take(assignment: Assignment, core: int, memory_mib: int) -> None:
    """Take more of the assignment's GPU. Raises NoRoom."""
    if not (core or memory_mib) or capacity.take(gpu_id=assignment.gpu_id, core=core, memory_mib=memory_mib):
        return
    assignment.gpu.refresh_from_db()
    gpu = assignment.gpu
    raise NoRoom(
        f"GPU capacity exceeded: requested {core} % more core and {memory_mib} MiB more memory, "
        f"{gpu.core_free} % and {gpu.memory_free_mib} MiB available on GPU {gpu.uuid}",
        gpu_uuid=gpu.uuid,
        core_free=gpu.core_free,
        memory_free_mib=gpu.memory_free_mib,
    )


def _resize_loans(claim: Claim, *, resized: bool) -> None:
    if claim.lent_core and (resized or not claim.rebalance):
        borrowing.lend(claim, 0)
    if claim.borrowed_core and resized and not borrowing.borrow_other(claim, claim.core_request):
        raise NoRoom(
            f"Lent core exceeded: the claim runs on core that others lend, and less than {claim.core_request} % "
            "is lent",
            core_request=claim.core_request,
        )


def _refuse_reserved(claim: Claim, assignments: list[Assignment]) -> None:
    """Refuse what a reservation needs before the claim ends. Raises NoRoom."""
    keys = [assignment.gpu_id for assignment in assignments]
    if reserved := Guard(keys, now=timezone.now()).find_conflicts(claim):
        raise NoRoom(f"What is free on GPU {reserved[0]} is reserved.", gpu_uuid=reserved[0], reserved=True)


def _grown(assignment: Assignment, claim: Claim, *, owns: bool) -> tuple[int, int]:
    """Raise what the assignment holds to what is wanted, and say by how much. `owns`: and borrow nothing any more."""
    if assignment.borrowed_core:
        assignment.borrowed_core = 0 if owns else claim.core_request
    core = 0 if assignment.borrowed_core else max(0, claim.core_request - assignment.held_core)
    memory_mib = max(0, claim.memory_mib - assignment.held_memory_mib)
    assignment.held_core += core
    assignment.held_memory_mib += memory_mib
    return core, memory_mib


def _at_least(target: dict[str, int], charged: dict[str, int]) -> dict[str, int]:
    """Return the greater of both: a refund waits until the agent has confirmed."""
    return {resource: max(amount, charged[resource]) for resource, amount in target.items()}
