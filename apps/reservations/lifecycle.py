"""The life of reservations: booking, changing and releasing.

The order of locks of a booking: the pool, so that two bookings never see the same free window; the tenant, so that two
never see the same free quota; the chosen GPUs, which a round locks too when it places a claim.
"""

import uuid
from copy import copy
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from apps.quotas.models import EventKind, Pool, Tenant
from apps.quotas.principals import Principal
from apps.quotas.services import audit, limit_ranges
from apps.quotas.services.refusals import QuotaExceeded
from apps.quotas.services.webhooks.outbox import tell
from apps.reservations import booking
from apps.scheduling import events
from apps.scheduling.core.values import Placed
from apps.scheduling.models import Reservation, ReservationState
from apps.scheduling.models.reservation import OPEN, Ending
from apps.scheduling.services.charging import reservation_charges
from apps.scheduling.services.claims.lifecycle import WrongState
from gpucloud.api import etags
from gpucloud.errors import Conflict, Invalid

WEEK = timedelta(days=7)
# The furthest end of a window: each round reads what is booked.
MOST_AHEAD = timedelta(days=366)
MOST_OPEN = 200
# Clocks differ, and a request takes a while: a window that began this short a time ago begins now.
LATE = timedelta(minutes=1)
# The fields of a booking that an owner may change.
SETTABLE = frozenset({"name", "start_at", "end_at", "grace_seconds", "idle_percent", "idle_seconds"})


class WindowInvalid(Invalid, code="window-invalid", title="This window cannot be booked"):
    """The window cannot be booked by anybody."""


class TooManyReservations(Conflict, code="too-many-reservations", title="Too many reservations"):
    """The tenant has as many open reservations as it may."""


@transaction.atomic
def create_reservation(
    *,
    principal: Principal,
    tenant: Tenant,
    pool: Pool,
    weekly_until: datetime | None = None,
    **asked: Any,
) -> list[Reservation]:
    """Book a window, or the same window every week until a moment: all of them or none.

    Raises WindowInvalid, WindowTaken, QuotaExceeded, TooManyReservations, RoleMissing, FieldMissing, OutOfRange,
    ImpossibleReservation.
    """
    principal.require_role(tenant, "member")
    first, rows = _draft(principal, tenant, pool, weekly_until, asked)
    lock(pool, tenant)
    _refuse_many(tenant, len(rows))
    booking.refuse_over_quota(rows)
    for row, gpus in zip(rows, booking.choose(rows, principal=principal), strict=True):
        row.save()
        row.gpus.set(gpus)
        note(row, principal=principal, action="create", **_facts(row))
    if first.start_at <= timezone.now():
        events.drive_reservations_on_commit()
    return rows


def preview_reservation(
    *,
    principal: Principal,
    tenant: Tenant,
    pool: Pool,
    weekly_until: datetime | None = None,
    **asked: Any,
) -> dict[str, Any]:
    """Return the outcome that booking would have now; of a series, that of the first that does not fit.

    Changes nothing. Raises WindowInvalid, RoleMissing, FieldMissing, OutOfRange, ImpossibleReservation.
    """
    principal.require_role(tenant, "member")
    _, rows = _draft(principal, tenant, pool, weekly_until, asked)
    gpus, facts, seen = list[str](), dict[str, Any](), booking.read(rows)
    for row in rows:
        outlook = booking.outlook(row, seen)
        facts = booking.facts_of(row, outlook, principal)
        words = [] if isinstance(outlook.answer, Placed) else [booking.words(row, outlook)]
        gpus = gpus or (list(outlook.answer.gpus) if isinstance(outlook.answer, Placed) else [])
        try:
            booking.refuse_over_quota([row])
        except QuotaExceeded as error:
            facts["reasons"].append({"code": error.code, "gpus": 0, "detail": error.detail})
            words.append(error.detail)
        if words:
            which = f"From {row.start_at:%Y-%m-%d %H:%M:%S} UTC: " if len(rows) > 1 else ""
            return {"dry_run": True, "fits": False, "detail": which + " ".join(words), "gpus": gpus, **facts}
    all_of_it = "It would be booked." if len(rows) == 1 else f"All {len(rows)} windows would be booked."
    return {"dry_run": True, "fits": True, "detail": all_of_it, "gpus": gpus, **facts}


def _draft(
    principal: Principal, tenant: Tenant, pool: Pool, weekly_until: datetime | None, asked: dict[str, Any]
) -> tuple[Reservation, list[Reservation]]:
    """Return the reservation with the tenant's defaults, and its weekly series, after checking windows and sizes."""
    length = asked["end_at"] - asked["start_at"]
    first = Reservation(
        tenant=tenant, pool=pool, created_by=principal.name, **_with_defaults(tenant, pool, asked, length)
    )
    rows = weekly(first, weekly_until)
    for row in rows:
        refuse_window(row.start_at, row.end_at)
    booking.refuse_impossible(first)
    return first, rows


def _with_defaults(tenant: Tenant, pool: Pool, asked: dict[str, Any], length: timedelta) -> dict[str, Any]:
    """Fill in the tenant's defaults. The limits of one claim bound a reservation; its window counts as a time limit."""
    like = {**asked, "time_limit_seconds": int(length.total_seconds())}
    filled = limit_ranges.fill(
        tenant, pool, like | ({"core_limit": like["core_request"]} if "core_request" in like else {})
    )
    return {name: value for name, value in filled.items() if name not in ("core_limit", "time_limit_seconds")}


@transaction.atomic
def change_reservation(
    *, principal: Principal, reservation: Reservation, versions: etags.Versions = None, **values: Any
) -> Reservation:
    """Change its name, window or rules: it keeps its GPUs if they have the room, else it moves if it is only booked.

    Raises WrongState, WindowInvalid, WindowTaken, QuotaExceeded, PreconditionFailed.
    """
    assert values.keys() <= SETTABLE, values
    principal.require_role(reservation.tenant, "member")
    reservation = locked(reservation, versions)
    _refuse_wrong_state(reservation, values)
    before = {name: getattr(reservation, name) for name in values}
    for name, value in values.items():
        setattr(reservation, name, value)
    told: dict[str, Any] = {}
    if {"start_at", "end_at"} & values.keys():
        _rebook(reservation, principal, begins=values.get("start_at"))
        if reservation.state == ReservationState.BOOKED:
            # The reason for which it could not begin was of the window before.
            told = {"reason": None}
    reservation.change(**values, **told)
    note(reservation, principal=principal, action="change", before=_plain(before), **_plain(values))
    return reservation


@transaction.atomic
def release_reservation(
    *,
    principal: Principal,
    reservation: Reservation,
    versions: etags.Versions = None,
    ending: str | None = None,
) -> Reservation:
    """Release it: its room and its charge at once; its claims end with it a moment later. Repeatable."""
    principal.require_role(reservation.tenant, "member")
    reservation = locked(reservation, versions)
    if reservation.state not in OPEN:
        return reservation
    if ending is None:
        ending = Ending.CANCELLED if reservation.state == ReservationState.BOOKED else Ending.EARLY
    reservation_charges.lower(reservation, dict.fromkeys(reservation.charged, 0), principal=principal)
    before = {"state": reservation.state}
    reservation.change(state=ReservationState.RELEASED, ending=ending, released_at=timezone.now(), reason=None)
    note(reservation, principal=principal, action="release", before=before, why=str(Ending(ending).label))
    tell_of(reservation, EventKind.RESERVATION_ENDED, ending=ending)
    events.drive_reservations_on_commit()
    return reservation


def locked(reservation: Reservation, versions: etags.Versions = None) -> Reservation:
    """Return the reservation under its row lock. Raises PreconditionFailed."""
    return etags.lock(reservation, versions, "tenant", "pool")


def lock(pool: Pool, tenant: Tenant) -> None:
    """Lock pool and tenant: one booking at a time. Not FOR UPDATE: claims refer to both and must not wait."""
    list(Pool.objects.select_for_update(no_key=True).filter(pk=pool.pk))
    list(Tenant.objects.select_for_update(no_key=True).filter(pk=tenant.pk))


def refuse_window(start_at: datetime, end_at: datetime) -> None:
    """Raise WindowInvalid if nobody could book the window."""
    now = timezone.now()
    if end_at <= start_at:
        raise WindowInvalid(f"It must end after it begins, {start_at:%Y-%m-%d %H:%M:%S} UTC.")
    if end_at <= now:
        raise WindowInvalid(f"It would be over already: it ends {end_at:%Y-%m-%d %H:%M:%S} UTC.")
    if start_at < now - LATE:
        raise WindowInvalid("It would begin in the past: leave start_at out to begin now.", start_at=start_at)
    if end_at > now + MOST_AHEAD:
        days = MOST_AHEAD.days
        raise WindowInvalid(f"It would end more than {days} days from now: book that later.", most_days_ahead=days)


def weekly(first: Reservation, until: datetime | None) -> list[Reservation]:
    """Return the reservation, and a copy for each week that begins before `until`, with one `series`. Unsaved."""
    # Before a week is added to it: the last year has no later one.
    refuse_window(first.start_at, first.end_at)
    rows = [first]
    if until is not None and first.end_at > first.start_at + WEEK:
        raise WindowInvalid("A window that is booked every week is a week long at most.")
    while until is not None and rows[-1].start_at + WEEK < until:
        if len(rows) > MOST_OPEN:
            raise WindowInvalid(f"At most {MOST_OPEN} can be booked at once: end the series earlier.")
        again = copy(first)
        again.uid, again.start_at, again.end_at = uuid.uuid4(), rows[-1].start_at + WEEK, rows[-1].end_at + WEEK
        rows.append(again)
    if len(rows) > 1:
        series = uuid.uuid4()
        for row in rows:
            row.series = series
    return rows


def _refuse_many(tenant: Tenant, more: int) -> None:
    there = Reservation.objects.open().filter(tenant=tenant).count()
    if there + more > MOST_OPEN:
        raise TooManyReservations(f"{tenant.slug} has {there} of {MOST_OPEN} reservations: give some back.", open=there)


def _refuse_wrong_state(reservation: Reservation, values: dict[str, Any]) -> None:
    if reservation.state not in OPEN:
        raise WrongState(f"The reservation is {reservation.state}: book a new one.", state=reservation.state)
    if reservation.state == ReservationState.ACTIVE and "start_at" in values:
        raise WrongState("Its window has begun: only its end can be moved.", state=reservation.state)


def _rebook(reservation: Reservation, principal: Principal, *, begins: datetime | None) -> None:
    """Find room for the changed window: on its own GPUs, or, if it has not begun, on others.

    `begins`: None if its beginning is unchanged; that may be past, also for one that waits for quota.
    """
    refuse_window(begins or max(reservation.start_at, timezone.now()), reservation.end_at)
    length = reservation.end_at - reservation.start_at
    limit_ranges.check(reservation.tenant, reservation.pool, {"time_limit_seconds": int(length.total_seconds())})
    lock(reservation.pool, reservation.tenant)
    booking.refuse_over_quota([reservation])
    if booking.keep(reservation):
        return
    if reservation.state == ReservationState.ACTIVE:
        raise booking.stuck(reservation, principal)
    reservation.gpus.set(*booking.choose([reservation], principal=principal))


def note(
    reservation: Reservation,
    *,
    principal: Principal,
    action: str,
    before: dict[str, Any] | None = None,
    **after: Any,
) -> None:
    """Write the audit row of a change."""
    audit.record(principal, f"reservation.{action}", reservation, before=before, after=after)


def tell_of(row: Reservation, kind: str, **more: Any) -> None:
    """Record an event of the reservation for webhooks, in the caller's transaction."""
    tell(kind, tenant=row.tenant, reservation={"uid": row.uid, "state": row.state, **_facts(row)}, **more)


def _facts(row: Reservation) -> dict[str, Any]:
    share = {"gpu_count": row.gpu_count, "core_request": row.core_request, "memory_mib": row.memory_mib}
    return {
        "name": row.name,
        "pool": row.pool.name,
        **share,
        **_plain({"start_at": row.start_at, "end_at": row.end_at}),
    }


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in values.items()}
