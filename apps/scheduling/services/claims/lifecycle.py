"""Making and releasing claims."""

from contextlib import nullcontext
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from apps.nodes.models import Node
from apps.quotas.models import EventKind, Tenant
from apps.quotas.principals import Principal
from apps.quotas.services import audit, charging_last, limit_ranges
from apps.quotas.services.refusals import QuotaExceeded
from apps.scheduling import events
from apps.scheduling.core.placement import never_fits
from apps.scheduling.core.values import Request
from apps.scheduling.models import Assignment, AssignmentState, Claim, ClaimState, ElasticGroup
from apps.scheduling.models.choices import OverQuota, Remote
from apps.scheduling.models.claim import WAITING
from apps.scheduling.providers import instance_seats
from apps.scheduling.services.charging import reservation_charges, states
from apps.scheduling.services.charging.budgets import refuse_spent
from apps.scheduling.services.charging.shortages import reasons_of
from apps.scheduling.services.claims import isolation, lent_memory
from apps.scheduling.services.claims.spec import ClaimSpec
from apps.scheduling.services.fleet.devices import (
    LENDS_MEMORY,
    SHARES_INSTANCES,
    TAKES_REMOTE,
    could_carry,
    read_fleet,
    read_nodes,
)
from gpucloud import locks
from gpucloud.api import etags
from gpucloud.commits import Ending
from gpucloud.errors import Conflict, Invalid

# What waits for quota costs its tenant nothing, and every round looks at it.
MOST_UNCHARGED = 200
# The `why` of a release by a person or a token.
ASKED_FOR = "asked for"


class ImpossibleClaim(Invalid, code="impossible-claim", title="This can never fit"):
    """No machine of the pool could ever carry it."""


class TooManyWaiting(Conflict, code="too-many-waiting", title="Too many claims wait for quota"):
    """The tenant has as many uncharged claims in the queue as it may."""


class GroupOfOtherSize(Conflict, code="group-of-other-size", title="The group has another size"):
    """Claims of the tenant wait in a group of this name for another number of members."""


class GroupExists(Conflict, code="group-exists", title="There is a group of this name"):
    """An elastic group of this name lives, or claims of the tenant wait in a group of this name."""


class WrongState(Conflict, code="wrong-state", title="The claim's state does not allow this"):
    """The claim's state does not allow this."""


class LimitBelowRequest(Invalid, code="limit-below-request", title="core_limit must not be below core_request"):
    """The ceiling would be below what is guaranteed."""


def refuse_low_limit(request: int, limit: int) -> None:
    """Refuse a limit below the request. Raises LimitBelowRequest."""
    if limit < request:
        raise LimitBelowRequest(
            f"core_limit {limit} is below core_request {request}: lower core_request too.",
            core_limit=limit,
            core_request=request,
        )


@transaction.atomic
def create_claim(*, principal: Principal, spec: ClaimSpec, ending: Ending | None = None) -> Claim:
    """Charge the quota, write the claim as pending (a ResourceClaim's as allocating), wake the scheduler.

    The first claim of an elastic group brings the others with which the group starts. Raises OutOfRange, FieldMissing,
    QuotaExceeded (unless it may wait for room), BudgetExceeded, ImpossibleClaim, LimitBelowRequest, GroupOfOtherSize,
    GroupExists, RoleMissing, ReservationNotActive, ReservationFull, and what `isolation` raises. With `ending`, the
    charge may be left for the end of the transaction, which then raises QuotaExceeded.
    """
    claim = draft_claim(principal=principal, spec=spec)
    charge = None if ending is None else _charge_at_end(claim, principal=principal)
    if ending is not None and charge is not None:
        states.set_charged(claim, charge.amounts)
        _record_new(claim, principal=principal)
        ending.steps.append(charge.take)
    else:
        reservation_charges.enter(claim)
        _charge_first(claim, principal=principal)
    claim.save()
    events.claim_made_on_commit(claim)
    if claim.instance_of is not None:
        instance_seats.get().seat(claim)
        claim.refresh_from_db()
    if claim.begins_group:
        least = claim.group_size or 1
        ElasticGroup.objects.create(first=claim, least=least)
        for _ in range(1, least):
            add_member(claim, principal=principal, group_size=least)
    return claim


# The fields of an elastic group's first claim that every member has. Its lease is its own: the group ends with it.
OF_EVERY_MEMBER = (
    "tenant", "pool", "name", "gpu_count", "core_request", "core_limit", "memory_mib", "memory_limit_mib", "weight",
    "best_effort", "rebalance", "remote", "schedule", "gpu_model", "affinity", "anti_affinity", "exclusion",
    "node_selector", "priority", "time_limit_seconds", "start_at", "group", "group_most", "group_uid",
    "when_over_quota", "created_by", "user_id",
)  # fmt: skip


def add_member(first: Claim, *, principal: Principal, group_size: int) -> Claim:
    """Make one more claim of an elastic group, like its first one. Raises QuotaExceeded, BudgetExceeded.

    `group_size`: the number of members that are placed together with it; 1: it joins a group that runs.
    """
    claim = draft_member(first, group_size=group_size)
    refuse_spent(claim.tenant)
    _charge_first(claim, principal=principal)
    claim.save()
    events.claim_made_on_commit(claim)
    return claim


def draft_member(first: Claim, *, group_size: int) -> Claim:
    """Return one more claim of an elastic group, neither charged nor saved."""
    claim = Claim(**{name: getattr(first, name) for name in OF_EVERY_MEMBER}, group_size=group_size)
    if group_size == 1:
        # It joins now, or a later one does.
        claim.when_over_quota = OverQuota.REFUSE
    return claim


def charge_new_claim(*, principal: Principal, spec: ClaimSpec) -> Claim:
    """Charge and audit a claim that the caller saves in this transaction. Raises as `create_claim`."""
    claim = draft_claim(principal=principal, spec=spec)
    reservation_charges.enter(claim)
    _charge_first(claim, principal=principal)
    return claim


def _charge_at_end(claim: Claim, *, principal: Principal) -> charging_last.Charge | None:
    """Return the charge of a claim that can be written before it is charged; None for any other."""
    is_simple = claim.reservation is None and claim.instance_of is None and claim.group_most is None
    if not is_simple or claim.when_over_quota != OverQuota.REFUSE:
        return None
    return charging_last.prepare(states.context_of(claim, principal), amounts=claim.amounts)


def _charge_first(claim: Claim, *, principal: Principal) -> None:
    """Charge and audit a claim that is not saved yet, or let it wait for quota."""
    # What runs in another claim's instance is charged with that.
    target = claim.amounts if claim.instance_of is None else claim.charged
    try:
        # A new claim is only charged, and a charge takes everything or nothing by itself; but of a reservation what it
        # gave back for the claim is its own again where the charge is refused.
        with nullcontext() if claim.reservation is None else transaction.atomic():
            states.charge_to(claim, target, principal=principal)
    except QuotaExceeded as error:
        if claim.when_over_quota == OverQuota.REFUSE:
            raise
        _wait_for_quota(claim, error)
    _record_new(claim, principal=principal)


def _record_new(claim: Claim, *, principal: Principal) -> None:
    """Begin the timeline of a claim that is not saved yet, and audit it."""
    if claim.is_of_resource_claim:
        claim.state = ClaimState.ALLOCATING
    claim.timeline = [[claim.state, timezone.now().isoformat()]]
    audit.record(principal, "claim.create", claim, after=created_facts(claim))


def created_facts(claim: Claim) -> dict[str, Any]:
    """Return what the audit log says of a new claim."""
    instance: dict[str, Any] = (
        {"isolation": claim.isolation, "profile": claim.profile} if claim.profile is not None else {}
    )
    if claim.own_core is not None:
        instance |= {"own_core": claim.own_core, "own_memory_mib": claim.own_memory_mib}
    if claim.instance_of is not None:
        instance["instance_of"] = str(claim.instance_of)
    if claim.memory_limit_mib is not None:
        instance["memory_limit_mib"] = claim.memory_limit_mib
    if claim.remote != Remote.ALLOW:
        instance["remote"] = claim.remote
    return {"name": claim.name, "pool": claim.pool.name, "gpu_count": claim.gpu_count, **limits(claim), **instance}


def draft_claim(*, principal: Principal, spec: ClaimSpec) -> Claim:
    """Return the claim as it would be made, neither charged nor saved. Raises as `create_claim`, but of quotas."""
    principal.require_role(spec.tenant, "member")
    given, hard = spec.given(), isolation.is_hard(spec.given())
    filled = limit_ranges.fill(spec.tenant, spec.pool, isolation.with_profile(spec.pool, given) if hard else given)
    if hard:
        filled = _with_instance(spec, filled)
        limit_ranges.check(spec.tenant, spec.pool, filled)
    # What cannot be suspended needs no schedule.
    if not hard and spec.pod is None and spec.group is None and spec.reservation is None:
        filled.setdefault("schedule", spec.pool.default_schedule)
    refuse_low_limit(filled["core_request"], filled["core_limit"])
    claim = Claim(tenant=spec.tenant, pool=spec.pool, created_by=principal.name, user_id=principal.user_id, **filled)
    if claim.lease_seconds is not None:
        claim.lease_until = timezone.now() + timedelta(seconds=claim.lease_seconds)
    if claim.group_most is not None:
        claim.group_uid = claim.uid
    lent_memory.refuse_wrong(claim)
    if claim.instance_of is None:
        refuse_impossible(claim)
    _refuse_other_size(claim)
    refuse_spent(spec.tenant)
    return claim


def _with_instance(spec: ClaimSpec, filled: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a claim with hard isolation: of its own instance, or of the one that it runs in."""
    if spec.instance_of is None:
        return isolation.with_smallest(spec.pool, filled)
    return isolation.inside(isolation.find_opener(spec.tenant, spec.pool, spec.instance_of), filled)


def _wait_for_quota(claim: Claim, error: QuotaExceeded) -> None:
    """Let it go into the queue uncharged, and say why. Raises TooManyWaiting."""
    locks.serialize_transaction(f"waiting claims of tenant {claim.tenant_id}")
    _refuse_endless_queue(claim.tenant)
    claim.reasons = reasons_of(error)
    states.tell_of(claim, EventKind.CLAIM_OVER_QUOTA, why=error.detail)


def _refuse_endless_queue(tenant: Tenant) -> None:
    waiting = Claim.objects.filter(tenant=tenant, state__in=WAITING, charged_vgpus=0).count()
    if waiting >= MOST_UNCHARGED:
        raise TooManyWaiting(f"{waiting} claims of {tenant.slug} wait for quota already.", waiting=waiting)


def _refuse_other_size(claim: Claim) -> None:
    """Refuse a size that differs from the group's: one of the two would wait for members that never come."""
    if claim.group is None:
        return
    # The first member decides the size: the others wait until it is written.
    locks.serialize_transaction(f"group {claim.group} of tenant {claim.tenant_id} in pool {claim.pool_id}")
    others = Claim.objects.filter(tenant=claim.tenant, pool=claim.pool, group=claim.group)
    elastic, others = others.live().filter(group_uid__isnull=False), others.filter(state__in=WAITING)
    if elastic.exists() or (claim.group_uid is not None and others.exists()):
        detail = f"There is a group {claim.group} already: give another name, or release it."
        raise GroupExists(detail, group=claim.group)
    other = others.exclude(group_size=claim.group_size).first()
    if other is not None:
        raise GroupOfOtherSize(
            f"Group {claim.group} waits for {other.group_size} claims already, this one says {claim.group_size}: "
            f"give group_size {other.group_size}, or another group.",
            group=claim.group,
            group_size=other.group_size,
            requested=claim.group_size,
        )


def refuse_impossible(claim: Claim) -> None:
    """Refuse a claim that no GPU of the pool could carry, even empty. Raises ImpossibleClaim."""
    if could_carry(claim.pool, request_of(claim)):
        return
    fleet = read_fleet(claim.pool)
    if fleet and (reasons := never_fits(fleet, request_of(claim), nodes=read_nodes(claim.pool))):
        raise ImpossibleClaim(
            f"No GPU of pool {claim.pool.name} could ever carry this: "
            + "; ".join(reason.detail.replace("free", "at all") for reason in reasons)
            + ".",
            reasons=[asdict(reason) for reason in reasons],
        )


def request_of(claim: Claim) -> Request:
    """Return the claim as the core's request."""
    labelled = claim.affinity is not None or claim.anti_affinity is not None or claim.exclusion is not None
    # An agent that cannot run several claims in an instance would keep it closed.
    own = {} if claim.own_core is None else SHARES_INSTANCES
    lent = {} if claim.memory_limit_mib is None else LENDS_MEMORY
    remote = TAKES_REMOTE if claim.remote == Remote.REQUIRE else {}
    return Request(
        claim.gpu_count,
        claim.core_request,
        claim.memory_mib,
        claim.gpu_model,
        # Labels are the tenant's own. Claims without any are alike whose they are, and one refusal answers for all.
        tenant=str(claim.tenant_id) if labelled else "",
        affinity=claim.affinity,
        anti_affinity=claim.anti_affinity,
        exclusion=claim.exclusion,
        node_selector=tuple(sorted({**claim.node_selector, **own, **lent, **remote}.items())),
        profile=claim.profile,
    )


def limits(row: Claim | Assignment) -> dict[str, int]:
    """Return the three amounts that every claim has and that can be changed live."""
    return {"core_request": row.core_request, "core_limit": row.core_limit, "memory_mib": row.memory_mib}


def all_limits(row: Claim | Assignment) -> dict[str, int | None]:
    """Return all amounts that can be changed live, with those that few claims have."""
    return {**limits(row), "memory_limit_mib": row.memory_limit_mib}


def locked(claim: Claim, versions: etags.Versions = None) -> Claim:
    """Return the claim under its row lock. Raises PreconditionFailed."""
    return etags.lock(claim, versions, "tenant", "pool")


@transaction.atomic
def release_claim(
    *, principal: Principal, claim: Claim, versions: etags.Versions = None, why: str = ASKED_FOR
) -> Claim:
    """Give everything back: at once where nothing is placed, else when the agent has confirmed it. Repeatable."""
    principal.require_role(claim.tenant, "member")
    claim = locked(claim, versions)
    if claim.state == ClaimState.RELEASED or (claim.state == ClaimState.RELEASING and claim.preempt_at is None):
        return claim
    audit.record(principal, "claim.release", claim, before={"state": claim.state}, after={"why": why})
    said = f"Released by {principal.name}" if why == ASKED_FOR else f"Released: {why}"
    reasons = [{"code": "released", "gpus": 0, "detail": said}]
    if claim.state == ClaimState.RELEASING:  # it is being preempted, and need not come back to the queue
        states.move(claim, claim.state, preempt_at=None, reasons=reasons)
    elif not end_assignments(claim, preempt_at=None, reasons=reasons):
        states.charge_to(claim, dict.fromkeys(claim.charged, 0), principal=principal)
        states.move(claim, ClaimState.RELEASED, reasons=reasons)
    if claim.own_core is not None:
        instance_seats.get().follow_on_commit(claim)
    return claim


def end_assignments(claim: Claim, **values: Any) -> bool:
    """Begin to release the locked claim; False where nothing of it is on a GPU, and nothing was done."""
    assignments = list(claim.assignments.live().select_related("gpu"))
    if not assignments:
        return False
    for assignment in assignments:
        assignment.change(state=AssignmentState.RELEASING, generation=assignment.generation + 1)
    states.move(claim, ClaimState.RELEASING, generation=claim.generation + 1, **values)
    if claim.own_core is not None:
        instance_seats.get().follow_on_commit(claim)
    raise_frames({assignment.gpu.node_id for assignment in assignments})
    return True


def raise_frames(node_ids: set[int]) -> None:
    """Renumber the nodes' desired state in this transaction, and push it after the commit."""
    of_these = Node.objects.filter(pk__in=node_ids)
    if len(node_ids) > 1:
        # In key order: an UPDATE of many takes its locks in whatever order it finds them.
        list(of_these.order_by("pk").select_for_update(no_key=True).values_list("pk", flat=True))
    of_these.update(frame=F("frame") + 1)
    events.push_on_commit(node_ids)
