"""Charges of active reservations.

The rule: a reservation and its claims together charge what was reserved. The reservation does not charge the part that
its claims charge themselves; when a claim ends while the reservation is active, the reservation charges that part
again. Reservations that are booked or over charge nothing.

Order of locks: claims, reservations, then as everywhere: pools, membership, tenants, shares, quotas, GPUs.
"""

import uuid
from collections.abc import Iterable

from django.db import transaction
from django.db.models import Q, Sum
from django.utils import timezone

from apps.quotas.models import Pool, Resource, Tenant
from apps.quotas.principals import SYSTEM, Principal
from apps.quotas.services import charging, refusals
from apps.scheduling.models import Claim, Reservation, ReservationState
from gpucloud.errors import Conflict

Amounts = dict[str, int]
# A reservation's claims may have no more of these than it has; the number of shares and of whole GPUs may differ.
BOUNDED = (Resource.CORE_PERCENT, Resource.MEMORY_MIB)


class ReservationNotActive(
    Conflict, code="reservation-not-active", title="The reservation is not active for this claim"
):
    """The reservation has not begun, is over, or belongs to another tenant or pool."""


class ReservationFull(Conflict, code="reservation-full", title="The reservation has no room for this"):
    """The reservation's other claims leave less than this one requests."""


def locked_for(claim: Claim) -> Reservation | None:
    """Return the claim's reservation under its lock; None if it has none, or none that is active."""
    if claim.reservation_id is None:
        return None
    reservation = Reservation.objects.select_for_update(of=("self",)).get(pk=claim.reservation_id)
    return reservation if reservation.state == ReservationState.ACTIVE else None


def enter(claim: Claim) -> None:
    """Mark the reservation of a claim about to be made as claimed. Raises ReservationNotActive."""
    seen = claim.reservation
    if seen is None:
        return
    row = Reservation.objects.select_for_update().get(pk=seen.pk)
    if (row.tenant_id, row.pool_id) != (claim.tenant_id, claim.pool_id) or row.state != ReservationState.ACTIVE:
        window = f"{row.start_at:%Y-%m-%d %H:%M:%S} to {row.end_at:%Y-%m-%d %H:%M:%S} UTC"
        raise ReservationNotActive(
            f"Reservation {row.name!r} is {row.state}. It is for tenant {seen.tenant.slug} in pool {seen.pool.name}, "
            f"from {window}: claim for this tenant, in this pool, while it is active.",
            reservation=str(row.uid),
            state=row.state,
            start_at=row.start_at,
            end_at=row.end_at,
        )
    if row.claimed_at is None:
        Reservation.objects.filter(pk=row.pk).update(claimed_at=timezone.now(), updated_at=timezone.now())


def lock_of(claims: Iterable[Claim], also: Q | None = None) -> list[Reservation]:
    """Lock the reservations of several claims, and others, for a transaction that changes what each of them charges."""
    which = Q(pk__in={claim.reservation_id for claim in claims if claim.reservation_id is not None})
    if also is not None:
        which |= Q(pk__in=Reservation.objects.filter(also).values("pk"))
    rows = Reservation.objects.select_for_update(of=("self",)).select_related("tenant", "pool")
    return list(rows.filter(which).order_by("pk"))


def compute_charge(reservation: Reservation, *, but: Claim | None = None, target: Amounts | None = None) -> Amounts:
    """Return what the reservation should charge beside its claims, one of which will charge `target`.

    Raises ReservationFull.
    """
    claims = Claim.objects.filter(reservation=reservation, charged_vgpus__gt=0)
    if but is not None:
        claims = claims.exclude(uid=but.uid)
    borne = claims.aggregate(**{name: Sum(f"charged_{name}", default=0) for name in Resource.values})
    reserved = reservation.amounts
    left = {resource: amount - int(borne[resource]) for resource, amount in reserved.items()}
    if but is not None and target is not None:
        for resource in BOUNDED:
            if target[resource] > max(left[resource], but.charged[resource]):
                raise ReservationFull(
                    f"Reservation {reservation.name} exceeded: requested {target[resource]} of {resource}, "
                    f"{max(0, left[resource])} of {reserved[resource]} available",
                    resource=resource,
                    reservation=str(reservation.uid),
                    reserved=reserved[resource],
                    free=max(0, left[resource]),
                    requested=target[resource],
                )
            left[resource] -= target[resource]
        left |= {name: left[name] - target[name] for name in left if name not in BOUNDED}
    return {resource: max(0, amount) for resource, amount in left.items()}


def lower(reservation: Reservation, target: Amounts, *, principal: Principal = SYSTEM) -> None:
    """Refund what the reservation charges above the target."""
    less = {name: amount - target[name] for name, amount in reservation.charged.items() if amount > target[name]}
    if less:
        charging.refund(_charge_context(reservation, principal), amounts=less)
        _write(reservation, {name: target[name] for name in less})


def lift(reservation: Reservation, target: Amounts, *, principal: Principal = SYSTEM) -> None:
    """Charge up to the target. Raises QuotaExceeded."""
    more = {name: target[name] - amount for name, amount in reservation.charged.items() if amount < target[name]}
    if more:
        charging.charge(_charge_context(reservation, principal), amounts=more)
        _write(reservation, {name: target[name] for name in more})


def lift_if_possible(reservation: Reservation, target: Amounts) -> bool:
    """Charge up to the target; return False if the quota was lowered meanwhile: a release must never fail for that."""
    try:
        with transaction.atomic():
            lift(reservation, target)
    except refusals.QuotaExceeded:
        reservation.refresh_from_db()
        return False
    return True


def charged_by_reservation(tenant: Tenant, pool: Pool | None, resource: str) -> dict[uuid.UUID, int]:
    """Return the amount that each reservation of the tenant charges of a resource, in one pool or in all."""
    field = f"charged_{resource}"
    rows = Reservation.objects.filter(tenant=tenant, **{f"{field}__gt": 0}).order_by("pk")
    if pool is not None:
        rows = rows.filter(pool=pool)
    return dict(rows.values_list("uid", field))


def _write(reservation: Reservation, amounts: Amounts) -> None:
    """Write the charged amounts.

    The version stays: a claim that comes or goes must not make an owner's entity tag stale.
    """
    for name, amount in amounts.items():
        setattr(reservation, f"charged_{name}", amount)
    reservation.save(update_fields=[*(f"charged_{name}" for name in amounts), "updated_at"])


def _charge_context(reservation: Reservation, principal: Principal) -> charging.ChargeContext:
    # A reservation counts to no member's limit: its claims do.
    return charging.ChargeContext(
        principal=principal, tenant=reservation.tenant, pool=reservation.pool, claim_uid=reservation.uid
    )
