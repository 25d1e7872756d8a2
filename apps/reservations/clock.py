"""The clock of reservations: it begins them, finds them unclaimed or idle, and ends them.

Level-triggered: each run compares the present state with the one that should be, and applies each change under the
reservation's lock and in a transaction of its own. After a downtime a reservation begins late, once; one whose window
is over ends.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from apps.nodes.models.node import FRESH
from apps.quotas.models import EventKind
from apps.quotas.principals import SYSTEM
from apps.quotas.services.refusals import QuotaExceeded
from apps.reservations import booking
from apps.reservations.idleness import used_percent
from apps.reservations.lifecycle import lock, locked, note, release_reservation, tell_of
from apps.scheduling.models import Claim, ClaimState, Reservation, ReservationState
from apps.scheduling.models.claim import PLACED
from apps.scheduling.models.reservation import Ending
from apps.scheduling.providers import booking_outlooks
from apps.scheduling.services.charging import reservation_charges, states
from apps.scheduling.services.claims.lifecycle import locked as locked_claim
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.failures import each
from apps.scheduling.services.fleet.reserved import NOTICE, overrun
from gpucloud.errors import Busy

# A reservation is checked for being idle this often within its `idle_seconds`.
LOOKS = 30
ENDED = (ClaimState.RELEASING, ClaimState.RELEASED)


def drive() -> int:
    """Run the clock once; return the number of reservations and claims changed."""
    now = timezone.now()
    open_ = Reservation.objects.open().order_by("pk")
    steps: list[tuple[Q, Callable[[Reservation, datetime], bool]]] = [
        (Q(end_at__lte=now), _end),
        (Q(state=ReservationState.ACTIVE, gpus__node__last_seen_at=None), _end_forgotten),
        (Q(state=ReservationState.BOOKED, start_at__lte=now), _begin),
        (Q(state=ReservationState.ACTIVE), _settle),
        (Q(state=ReservationState.ACTIVE, claimed_at=None, grace_seconds__isnull=False), _end_unclaimed),
        (Q(state=ReservationState.ACTIVE, gpus__node__last_seen_at__lt=now - FRESH, lost_since=None), _record_loss),
        (Q(lost_since__isnull=False), _record_return),
        # After these: the use of a silent machine is not known.
        (Q(state=ReservationState.ACTIVE, claimed_at__isnull=False, idle_percent__isnull=False), _idle),
    ]
    changed = 0
    for which, act in steps:
        # One that fails is left for the next run, and holds up no other.
        changed += each(open_.filter(pk__in=open_.filter(which).values("pk")), partial(_at, act, now))
    return changed + _warn_borrowers(now) + _end_borrowers(now) + _end_claims()


def _at(act: Callable[[Reservation, datetime], bool], now: datetime, row: Reservation) -> bool:
    return act(row, now)


@transaction.atomic
def _end(seen: Reservation, now: datetime) -> bool:
    row = locked(seen)
    if row.end_at > now or row.state == ReservationState.RELEASED:
        return False
    release_reservation(principal=SYSTEM, reservation=row, ending=Ending.ENDED)
    return True


@transaction.atomic
def _begin(seen: Reservation, now: datetime) -> bool:
    row = locked(seen)
    if row.state != ReservationState.BOOKED or not row.start_at <= now < row.end_at:
        return False
    gone = booking.without_gpus(row)
    if gone:
        lock(row.pool, row.tenant)
    try:
        with transaction.atomic():
            row.change(state=ReservationState.ACTIVE, started_at=now, reason=None)
            reservation_charges.lift(row, reservation_charges.compute_charge(row))
    except QuotaExceeded as error:
        row.refresh_from_db()
        return _cannot_begin(row, error, now)
    note(row, principal=SYSTEM, action="begin", late_seconds=int((now - row.start_at).total_seconds()))
    tell_of(row, EventKind.RESERVATION_BEGAN)
    if gone:
        _move(row)
    return True


def _cannot_begin(row: Reservation, error: QuotaExceeded, now: datetime) -> bool:
    """Record once that it cannot begin; release it when its grace is over and it was tried before."""
    if row.reason is None:
        row.change(reason=error.detail)
        note(row, principal=SYSTEM, action="wait", why=error.detail)
        return True
    grace = row.grace_seconds
    if grace is not None and row.start_at + timedelta(seconds=grace) <= now:
        release_reservation(principal=SYSTEM, reservation=row, ending=Ending.NO_QUOTA)
        return True
    if row.reason == error.detail:
        return False
    # Its numbers change with all that the tenant does: no news to the owner's entity tag, nor to the scheduler.
    Reservation.objects.filter(pk=row.pk).update(reason=error.detail, updated_at=now)
    return True


def _move(row: Reservation) -> None:
    """Move a reservation whose machines are gone or cordoned to others, if there are any; else it waits on its own."""
    before = sorted(row.gpus.values_list("uuid", flat=True))
    try:
        with transaction.atomic():
            row.gpus.set(*booking.choose([row], principal=SYSTEM, ready=True))
    except (booking.WindowTaken, Busy) as error:
        row.change(reason=error.detail)
        note(row, principal=SYSTEM, action="wait", why=error.detail)
    else:
        after = {"gpus": sorted(row.gpus.values_list("uuid", flat=True))}
        note(row, principal=SYSTEM, action="move", before={"gpus": before}, **after)


@transaction.atomic
def _end_forgotten(seen: Reservation, now: datetime) -> bool:
    """Release a reservation on a machine that an operator has given up: it charges its tenant nothing any more."""
    row = locked(seen)
    if row.state != ReservationState.ACTIVE or not row.gpus.filter(node__last_seen_at=None).exists():
        return False
    release_reservation(principal=SYSTEM, reservation=row, ending=Ending.FORGOTTEN)
    return True


@transaction.atomic
def _record_loss(seen: Reservation, now: datetime) -> bool:
    """Record that its machine is silent; it is charged until the node is back or forgotten, or it is released."""
    row = locked(seen)
    silent = _silent(row, now)
    if row.state != ReservationState.ACTIVE or row.lost_since is not None or not silent:
        return False
    row.change(lost_since=now)
    note(row, principal=SYSTEM, action="lost", nodes=silent)
    return True


@transaction.atomic
def _record_return(seen: Reservation, now: datetime) -> bool:
    row = locked(seen)
    if row.lost_since is None or _silent(row, now):
        return False
    row.change(lost_since=None)
    note(row, principal=SYSTEM, action="found")
    return True


def _silent(row: Reservation, now: datetime) -> list[str]:
    """Return its nodes that are silent."""
    silent = row.gpus.filter(node__last_seen_at__lt=now - FRESH)
    return sorted(set(silent.values_list("node__name", flat=True)))


def _settle(seen: Reservation, now: datetime) -> bool:
    """Charge again what could not be charged when a claim ended."""
    if reservation_charges.compute_charge(seen) == seen.charged:
        return False
    with transaction.atomic():
        row = locked(seen)
        if row.state != ReservationState.ACTIVE:
            return False
        before = row.charged
        reservation_charges.lift_if_possible(row, reservation_charges.compute_charge(row))
        return row.charged != before


@transaction.atomic
def _end_unclaimed(seen: Reservation, now: datetime) -> bool:
    row = locked(seen)
    if row.state != ReservationState.ACTIVE or row.claimed_at is not None:
        return False
    assert row.started_at is not None
    if row.grace_seconds is None or row.started_at + timedelta(seconds=row.grace_seconds) > now:
        return False
    release_reservation(principal=SYSTEM, reservation=row, ending=Ending.NO_SHOW)
    return True


@transaction.atomic
def _idle(seen: Reservation, now: datetime) -> bool:
    """Report it once; if the pool says so, release it when it was reported and is still idle."""
    if seen.idle_checked_at is not None and now < seen.idle_checked_at + _between(seen):
        return False
    row = locked(seen)
    # Neither the version nor the time of the last change is news.
    Reservation.objects.filter(pk=row.pk).update(idle_checked_at=now)
    used = used_percent(row, now=now) if row.state == ReservationState.ACTIVE else None
    if used is None or row.idle_percent is None:
        return False
    if used >= row.idle_percent:
        if row.idle_since is not None:
            row.change(idle_since=None, reason=None)
            return True
        return False
    if row.idle_since is None:
        row.change(idle_since=now)
        used = round(used, 1)
        note(
            row,
            principal=SYSTEM,
            action="idle",
            used_percent=used,
            seconds=row.idle_seconds,
            reclaimed=row.pool.reclaim_idle,
        )
        return True
    if row.pool.reclaim_idle and row.idle_since + NOTICE <= now:
        return _reclaim(row, now)
    return False


def _reclaim(row: Reservation, now: datetime) -> bool:
    """Release an idle reservation, unless its tenant is expected to use it again."""
    why = booking_outlooks.get().expects_use(row, now=now)
    if why is None:
        release_reservation(principal=SYSTEM, reservation=row, ending=Ending.IDLE)
    elif row.reason is None:
        row.change(reason=why)
        note(row, principal=SYSTEM, action="keep", why=why)
    else:
        return False
    return True


def _between(row: Reservation) -> timedelta:
    """Return the time between two checks.

    All samples of its window are summed each time; nobody needs that to the second.
    """
    return timedelta(seconds=row.idle_seconds / LOOKS)


def _warn_borrowers(now: datetime) -> int:
    """Give notice to borrowers that must yield, and withdraw it from those that need not."""
    wanted = overrun(now=now)
    told = Q(yields_at__isnull=False) | Q(uid__in=wanted)
    claims = Claim.objects.filter(told, state__in=PLACED).order_by("pk")
    news = [claim for claim in claims if (claim.yields_at is None) == (str(claim.uid) in wanted)]
    return each(news, lambda claim: _warn(claim, wanted.get(str(claim.uid))))


@transaction.atomic
def _warn(seen: Claim, yields_at: datetime | None) -> bool:
    claim = locked_claim(seen)
    if claim.state not in PLACED or claim.yields_at != seen.yields_at:
        return False
    ends_at = yields_at and yields_at.isoformat()
    states.note(
        claim, "notice" if yields_at else "spared", yields_at=ends_at, why="the room that it borrows is reserved"
    )
    kind = EventKind.CLAIM_PREEMPTION_NOTICE if yields_at else EventKind.CLAIM_PREEMPTION_SPARED
    states.tell_of(claim, kind, at=yields_at, why="The room that it borrows is reserved; it ends then.")
    states.move(claim, claim.state, yields_at=yields_at)
    return True


def _end_borrowers(now: datetime) -> int:
    over = Claim.objects.filter(yields_at__lte=now, state__in=PLACED).select_related("tenant")
    return each(over, lambda claim: _release(claim, "the room that it borrowed is reserved from now on"))


def _end_claims() -> int:
    left = Claim.objects.exclude(state__in=ENDED).filter(reservation__state=ReservationState.RELEASED)
    return each(left.select_related("tenant", "reservation"), _release_with_reservation)


def _release_with_reservation(claim: Claim) -> bool:
    return _release(claim, f"its reservation {claim.reservation and claim.reservation.name} has ended")


def _release(claim: Claim, why: str) -> bool:
    release_claim(principal=SYSTEM, claim=claim, why=why)
    return True
