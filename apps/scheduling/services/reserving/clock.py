"""What time does to reservations: they begin, are found unclaimed or idle, and end.

Level-triggered: each turn looks at what should be so now and makes it so, each change under the reservation's lock and
in a transaction of its own. After a downtime what should have begun begins late, once; what is over ends.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from apps.quotas.models import EventKind
from apps.quotas.principals import SYSTEM
from apps.quotas.services import audit
from apps.quotas.services.charging import QuotaExceeded
from apps.scheduling.models import Claim, ClaimState, Reservation, ReservationState
from apps.scheduling.models.claim import PLACED
from apps.scheduling.models.reservation import Ending
from apps.scheduling.services.claims import states
from apps.scheduling.services.claims.life import locked as locked_claim
from apps.scheduling.services.claims.life import release_claim
from apps.scheduling.services.reserving import booking, charges
from apps.scheduling.services.reserving.idleness import used_percent
from apps.scheduling.services.reserving.reservations import lock, locked, note, release_reservation, tell_of
from apps.scheduling.services.reserving.reserved import NOTICE, overrun
from gpucloud.errors import Busy

ENDED = (ClaimState.RELEASING, ClaimState.RELEASED)


def drive() -> int:
    """One turn; returns how many reservations and claims it changed."""
    now = timezone.now()
    open_ = Reservation.objects.open().order_by("pk")
    steps: list[tuple[Q, Callable[[Reservation, datetime], bool]]] = [
        (Q(end_at__lte=now), _end),
        (Q(state=ReservationState.BOOKED, start_at__lte=now), _begin),
        (Q(state=ReservationState.ACTIVE), _settle),
        (Q(state=ReservationState.ACTIVE, claimed_at=None, grace_seconds__isnull=False), _no_show),
        (Q(state=ReservationState.ACTIVE, claimed_at__isnull=False, idle_percent__isnull=False), _idle),
    ]
    changed = 0
    for which, act in steps:
        for row in list(open_.filter(which)):
            changed += act(row, now)
    return changed + _warn_borrowers(now) + _end_borrowers(now) + _end_claims()


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
            charges.lift(row, charges.due(row))
    except QuotaExceeded as error:
        row.refresh_from_db()
        return _cannot_begin(row, error, now)
    note(row, principal=SYSTEM, action="begin", late_seconds=int((now - row.start_at).total_seconds()))
    tell_of(row, EventKind.RESERVATION_BEGAN)
    if gone:
        _move(row)
    return True


def _cannot_begin(row: Reservation, error: QuotaExceeded, now: datetime) -> bool:
    """Say so once; give it back when its grace is over, and has been tried before."""
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
    """Its machines are gone or cordoned: others, where there are any, else it waits on its own."""
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


def _settle(seen: Reservation, now: datetime) -> bool:
    """What could not be charged again when a claim ended is tried once more."""
    if charges.due(seen) == seen.charged:
        return False
    with transaction.atomic():
        row = locked(seen)
        if row.state != ReservationState.ACTIVE:
            return False
        before = row.charged
        charges.lift_if_possible(row, charges.due(row))
        return row.charged != before


@transaction.atomic
def _no_show(seen: Reservation, now: datetime) -> bool:
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
    """Report it once; where the pool says so, take it back when it was told and is still idle."""
    row = locked(seen)
    used = used_percent(row, now=now) if row.state == ReservationState.ACTIVE else None
    if used is None or row.idle_percent is None:
        return False
    if used >= row.idle_percent:
        if row.idle_since is not None:
            row.change(idle_since=None)
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
        release_reservation(principal=SYSTEM, reservation=row, ending=Ending.IDLE)
        return True
    return False


def _warn_borrowers(now: datetime) -> int:
    """Tell those who must go when they go, and those who need not that they may stay."""
    wanted = overrun(now=now)
    told = Q(yields_at__isnull=False) | Q(uid__in=wanted)
    changed = 0
    for claim in Claim.objects.filter(told, state__in=PLACED).order_by("pk"):
        if (claim.yields_at is None) == (str(claim.uid) in wanted):
            changed += _warn(claim, wanted.get(str(claim.uid)))
    return changed


@transaction.atomic
def _warn(seen: Claim, yields_at: datetime | None) -> bool:
    claim = locked_claim(seen)
    if claim.state not in PLACED or claim.yields_at != seen.yields_at:
        return False
    audit.record(
        principal=SYSTEM,
        action="claim.notice" if yields_at else "claim.spared",
        object_type="claim",
        object_id=claim.uid,
        tenant=claim.tenant,
        after={"yields_at": yields_at and yields_at.isoformat(), "why": "the room that it borrows is reserved"},
    )
    kind = EventKind.CLAIM_PREEMPTION_NOTICE if yields_at else EventKind.CLAIM_PREEMPTION_SPARED
    states.tell_of(claim, kind, at=yields_at, why="The room that it borrows is reserved; it ends then.")
    states.move(claim, claim.state, yields_at=yields_at)
    return True


def _end_borrowers(now: datetime) -> int:
    over = Claim.objects.filter(yields_at__lte=now, state__in=PLACED).select_related("tenant")
    return sum(_released(claim, "the room that it borrowed is reserved from now on") for claim in over)


def _end_claims() -> int:
    left = Claim.objects.exclude(state__in=ENDED).filter(reservation__state=ReservationState.RELEASED)
    return sum(
        _released(claim, f"its reservation {claim.reservation.name} has ended")
        for claim in left.select_related("tenant", "reservation")
        if claim.reservation is not None
    )


def _released(claim: Claim, why: str) -> bool:
    release_claim(principal=SYSTEM, claim=claim, why=why)
    return True
