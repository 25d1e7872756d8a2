"""State changes of claims, and their charges."""

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import takewhile
from typing import Any

from django.db.models import QuerySet, Sum
from django.utils import timezone

from apps.quotas.models import EventKind, Pool, Resource, Tenant
from apps.quotas.models.resource import MIG, charge_field, profile_of
from apps.quotas.principals import SYSTEM, Principal
from apps.quotas.services import audit, charging
from apps.quotas.services.webhooks.outbox import tell
from apps.scheduling import events
from apps.scheduling.models import Assignment, Claim, ClaimState
from apps.scheduling.models.claim import CHARGED, PUT_ASIDE
from apps.scheduling.models.orders import SuspendedBy
from apps.scheduling.models.share import amounts
from apps.scheduling.services.charging import borrowing, reservation_charges


def amounts_held(assignments: Iterable[Assignment]) -> dict[str, int]:
    """Return the amounts that these assignments charge by what they hold now; released ones charge nothing.

    A claim that moves to another node has two places: its share counts once, and the host memory of both nodes counts.
    """
    total = dict.fromkeys(Resource.values, 0)
    for assignment in assignments:
        if assignment.claim.profile is not None:
            has_instance = assignment.mig_start is not None and assignment.held_memory_mib > 0
            total |= assignment.claim.instances(int(has_instance))
        if assignment.state != "released" and assignment.counterpart_id is not None:
            total[Resource.HOST_MEMORY_MIB] += assignment.held_host_memory_mib
        elif assignment.state != "released":
            held = amounts(
                # A suspended one has no share of its GPU.
                gpu_count=1 if assignment.held_memory_mib else 0,
                core=assignment.held_core + assignment.borrowed_core,
                memory_mib=assignment.held_memory_mib,
            )
            held[Resource.HOST_MEMORY_MIB] = assignment.held_host_memory_mib
            total |= {resource: total[resource] + amount for resource, amount in held.items()}
    return total


def charge_to(claim: Claim, target: dict[str, int], *, principal: Principal = SYSTEM) -> None:
    """Bring the charge of the claim to `target`; the caller saves the claim.

    In an active reservation the claim takes over its part of the reservation's charge, and later returns it. Raises
    QuotaExceeded, ReservationFull.
    """
    reservation = reservation_charges.locked_for(claim)
    due = reservation_charges.compute_charge(reservation, but=claim, target=target) if reservation else {}
    more = {resource: target[resource] - claim.charged[resource] for resource in target}
    context = context_of(claim, principal)
    taken = {resource: amount for resource, amount in more.items() if amount > 0}
    returned = {resource: -amount for resource, amount in more.items() if amount < 0}
    if (taken and returned) or reservation:
        charging.lock_quotas(context, amounts=target)
    if reservation:
        reservation_charges.lower(reservation, due, principal=principal)
    if taken:
        charging.charge(context, amounts=taken)
    if returned:
        charging.refund(context, amounts=returned)
    set_charged(claim, target)
    if reservation:
        reservation_charges.lift_if_possible(reservation, due)


def context_of(claim: Claim, principal: Principal) -> charging.ChargeContext:
    """Return the context of a claim's charge."""
    return charging.ChargeContext(
        principal=principal, tenant=claim.tenant, pool=claim.pool, claim_uid=claim.uid, user_id=claim.user_id
    )


def set_charged(claim: Claim, amounts: Mapping[str, int]) -> None:
    """Have the claim say that these amounts are charged to it; the caller saves it."""
    for resource, amount in amounts.items():
        setattr(claim, charge_field(resource), amount)


def charged_by_claim(tenant: Tenant, pool: Pool | None, resource: str) -> dict[uuid.UUID, int]:
    """Return the amount that each claim and reservation of the tenant charges, in one pool or in all.

    See `apps.quotas.providers`.
    """
    field, profile = charge_field(resource), profile_of(resource)
    claims = Claim.objects.filter(tenant=tenant, **{f"{field}__gt": 0}).order_by("pk")
    if pool is not None:
        claims = claims.filter(pool=pool)
    if profile is not None:
        return dict(claims.filter(profile=profile).values_list("uid", field))
    return {
        **dict(claims.values_list("uid", field)),
        **reservation_charges.charged_by_reservation(tenant, pool, resource),
    }


def charged_by_user(tenant: Tenant, user_id: int) -> Counter[str]:
    """Return the amounts that the claims made by a user in the tenant charge, by resource.

    An instance counts to the user whose claim has it, whoever made the claims in it.
    """
    return _charged_by(Claim.objects.filter(CHARGED, tenant=tenant, user=user_id)).get(user_id, Counter())


def charged_by_users(tenant: Tenant) -> dict[int, Counter[str]]:
    """Return the amounts of `charged_by_user` for every user of the tenant, by the user's key; one query."""
    return _charged_by(Claim.objects.filter(CHARGED, tenant=tenant, user__isnull=False))


def _charged_by(claims: QuerySet[Claim]) -> dict[int, Counter[str]]:
    """Return the sums of these claims' charges by user and resource. A profile is null for most of them."""
    columns = {name: Sum(charge_field(name)) for name in Resource.values}
    sums: Any = claims.order_by().values("user_id", "profile").annotate(**columns, made=Sum(charge_field(MIG)))
    found: dict[int, Counter[str]] = {}
    for row in sums:
        held = found.setdefault(row["user_id"], Counter())
        held.update({name: int(row[name]) for name in Resource.values})
        if row["made"]:
            held[f"{MIG}{row['profile']}"] += int(row["made"])
    return found


CHARGED_FIELDS = [*map(charge_field, Resource.values), charge_field(MIG)]


# Values of a claim that is not preempted.
NOT_PREEMPTED: dict[str, Any] = {"preempt_at": None, "preempted_for": None}


# Values of a claim that is not idle, or not known to be.
NOT_IDLE: dict[str, Any] = {"idle_since": None, "idle_reason": None, "idle_release_at": None}


# Values of a claim that gets its guarantee, or has none.
GUARANTEED: dict[str, Any] = {"below_guarantee_since": None, "below_guarantee": ""}


# The webhook event of a claim that comes to a state.
WEBHOOK_EVENTS = {
    ClaimState.ACTIVE: EventKind.CLAIM_ACTIVE,
    ClaimState.FAILED: EventKind.CLAIM_FAILED,
    ClaimState.RELEASED: EventKind.CLAIM_RELEASED,
    ClaimState.SUSPENDED: EventKind.CLAIM_SUSPENDED,
}

# Events of which a claim that rotates sends none: it would send both every few minutes.
ROUTINE = frozenset({EventKind.CLAIM_SUSPENDED, EventKind.CLAIM_RESUMED})


def _since_active(claim: Claim) -> set[str]:
    return {name for name, _ in takewhile(lambda entry: entry[0] != ClaimState.ACTIVE, reversed(claim.timeline))}


def was_suspended(claim: Claim) -> bool:
    """Return True if the claim has been suspended since it was last active."""
    return ClaimState.SUSPENDED in _since_active(claim)


def _find_event(claim: Claim, state: str) -> EventKind | None:
    """Return the webhook event of the claim's arrival at the state; None if there is none, or it was sent before.

    A refused suspension ends in `active` and a refused resumption in `suspended`: `claim.suspend_failed` tells of both.
    """
    if state == ClaimState.ACTIVE and ClaimState.SUSPENDING in _since_active(claim):
        return EventKind.CLAIM_RESUMED if was_suspended(claim) else None
    if state == ClaimState.SUSPENDED and was_suspended(claim):
        return None
    return WEBHOOK_EVENTS.get(ClaimState(state))


# A claim that rotates for weeks changes its state every few minutes: its first and its last steps are kept.
FIRST_STEPS, MOST_STEPS = 20, 200


def append_step(timeline: list[list[str]], state: str, at: datetime) -> list[list[str]]:
    """Return the timeline with one more step, and without those in the middle that are too many."""
    steps = [*timeline, [state, at.isoformat()]]
    return steps if len(steps) <= MOST_STEPS else [*steps[:FIRST_STEPS], *steps[FIRST_STEPS + 1 :]]


def claim_facts(claim: Claim) -> dict[str, Any]:
    """Return the facts of a claim that its events carry."""
    names = ("uid", "name", "state", "gpu_count", "core_request", "memory_mib", "priority", "suspended_by")
    return {"pool": claim.pool.name, **{name: getattr(claim, name) for name in names}}


def tell_of(claim: Claim, kind: str, **more: Any) -> None:
    """Record an event of a claim for webhooks, in the caller's transaction."""
    tell(kind, tenant=claim.tenant, claim=claim_facts(claim), **more)


def note(claim: Claim, what: str, **facts: object) -> None:
    """Record in the audit log what the platform itself does to a claim."""
    audit.record(SYSTEM, f"claim.{what}", claim, after=facts)


def move(claim: Claim, state: str, event: EventKind | None = None, /, **values: object) -> None:
    """Save the claim in this state, add it to the timeline, and notify watchers and webhooks.

    `event`: of webhooks, instead of the usual one of the change.
    """
    now = timezone.now()
    borrowing.settle(claim, state)
    kind = (event or _find_event(claim, state)) if state != claim.state else None
    if claim.suspended_by == SuspendedBy.ROTATION and kind in ROUTINE:
        kind = None
    if state != claim.state:
        claim.timeline = append_step(claim.timeline, state, now)
        claim.state = state
    if state == ClaimState.RELEASED:
        values["released_at"] = now
    if state != ClaimState.ACTIVE and claim.idle_since is not None:
        values |= NOT_IDLE
    if state != ClaimState.ACTIVE and claim.below_guarantee_since is not None:
        values |= GUARANTEED
    if state not in PUT_ASIDE and claim.suspended_by:
        values["suspended_by"] = ""
    charged = {name: getattr(claim, name) for name in CHARGED_FIELDS}
    lent = {"lent_core": claim.lent_core, "borrowed_core": claim.borrowed_core}
    claim.change(state=claim.state, timeline=claim.timeline, **charged, **lent, **values)
    if kind == EventKind.CLAIM_SUSPENDED:
        tell_of(claim, kind, why="; ".join(reason["detail"] for reason in claim.reasons))
    elif kind:
        tell_of(claim, kind)
    events.claim_changed_on_commit(claim)
