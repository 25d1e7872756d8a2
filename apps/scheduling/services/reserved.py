"""Reading who takes which GPU when, as the core's calendar wants it, and what of it concerns a claim to be placed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db.models import Q

from apps.nodes.models import Gpu
from apps.quotas.models import Pool
from apps.scheduling.core import calendar
from apps.scheduling.core.calendar import FOREVER, Hold, Room
from apps.scheduling.core.values import GpuState
from apps.scheduling.models import Assignment, AssignmentState, Claim, Reservation, ReservationState

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
# How long before a reservation begins those who borrow its room are told, and borrow no more of it.
NOTICE = timedelta(minutes=2)
# A claim that is being released, or whose time is over, still has its processes ended: 10 s and the agent's answer.
ENDING = timedelta(seconds=30)


def microseconds(moment: datetime) -> int:
    """Since 1970, exactly."""
    return (moment - EPOCH) // MICROSECOND


def moment(at_us: int) -> datetime:
    """The other way round."""
    return EPOCH + at_us * MICROSECOND


def holds_of(gpus: Q, *, now: datetime, but: Reservation | None = None, lent: bool = False) -> list[Hold]:
    """All that takes room on these GPUs from now on (`gpus` filters Gpu): two queries.

    `but`: without one reservation and its claims. `lent`: all best-effort claims give way, whatever their pool says.
    """
    own = None if but is None else str(but.uid)
    return [
        *_of_reservations(gpus, now, but),
        *(hold for hold in _of_claims(gpus, now, lent) if own is None or hold.within != own),
    ]


def _of_reservations(gpus: Q, now: datetime, but: Reservation | None) -> Iterable[Hold]:
    links = Reservation.gpus.through.objects.filter(
        gpu__in=Gpu.objects.filter(gpus), reservation__in=Reservation.objects.open()
    )
    if but is not None:
        links = links.exclude(reservation=but)
    columns = ("gpu__uuid", "core_request", "memory_mib", "start_at", "end_at", "uid", "tenant__slug", "state")
    for row in links.order_by("pk").values_list(columns[0], *(f"reservation__{name}" for name in columns[1:])):
        gpu, core, memory_mib, start_at, end_at, uid, tenant, state = row
        # What should have ended is not there any more but for the clock's next turn.
        begin = min(start_at, now) if state == ReservationState.ACTIVE else start_at
        yield Hold(
            gpu, core, memory_mib, microseconds(begin), microseconds(end_at), calendar.RESERVATION, str(uid), tenant
        )


def _of_claims(gpus: Q, now: datetime, lent: bool) -> Iterable[Hold]:
    live = Assignment.objects.filter(gpu__in=Gpu.objects.filter(gpus)).exclude(state=AssignmentState.RELEASED)
    for row in live.select_related("gpu", "claim__tenant", "claim__pool", "claim__reservation").order_by("pk"):
        claim, within = row.claim, None
        if claim.reservation is not None and claim.reservation.state == ReservationState.ACTIVE:
            within = str(claim.reservation.uid)
        yield Hold(
            row.gpu.uuid,
            row.held_core,
            row.held_memory_mib,
            0,
            _end_of(row, now),
            calendar.CLAIM,
            str(claim.uid),
            claim.tenant.slug,
            yields=borrows(claim) or (lent and claim.best_effort and claim.reservation_id is None),
            within=within,
        )


def _end_of(row: Assignment, now: datetime) -> int:
    soon = microseconds(now + ENDING)
    if row.state == AssignmentState.RELEASING:
        return soon
    ends = [item for item in (limit_of(row.claim, row.claim.assigned_at or now), row.claim.yields_at) if item]
    return max(soon, min(map(microseconds, ends))) if ends else FOREVER


def limit_of(claim: Claim, begin: datetime) -> datetime | None:
    """When a claim that begins then is over by itself; None: never."""
    limits = [] if claim.time_limit_seconds is None else [begin + timedelta(seconds=claim.time_limit_seconds)]
    if claim.reservation is not None:
        limits.append(claim.reservation.end_at)
    return min(limits, default=None)


def borrows(claim: Claim) -> bool:
    """Whether it may use reserved room, and then gives way."""
    return claim.best_effort and claim.pool.lend_reserved and claim.reservation_id is None


@dataclass(frozen=True, slots=True)
class Reserved:
    """What is reserved in a pool at one moment, for a round: `read_reserved`."""

    now: datetime
    holds: tuple[Hold, ...]

    def held(self, claim: Claim) -> Mapping[str, Room]:
        """(core, memory_mib) by GPU uuid that this claim may not count on. Not for claims in a reservation."""
        if not self.holds:
            return {}
        return calendar.held(self.holds, microseconds(self.now), until(claim, self.now))

    def within(self, claim: Claim, gpus: Iterable[GpuState]) -> list[GpuState]:
        """What the claim's reservation has left for it on these GPUs as they stand; nothing while it is not active."""
        if claim.reservation is None or claim.reservation.state != ReservationState.ACTIVE:
            return []
        return calendar.room_within(gpus, self.holds, str(claim.reservation.uid))


def until(claim: Claim, now: datetime) -> int:
    """Until when a claim placed now would want its room. A borrower's is over when the owner is about to come."""
    if borrows(claim):
        return microseconds(now + NOTICE)
    end = limit_of(claim, now)
    return FOREVER if end is None else microseconds(end)


def read_reserved(pool: Pool, *, now: datetime) -> Reserved:
    """One query where nothing is reserved."""
    reserved = Gpu.objects.filter(reservations__in=Reservation.objects.open().filter(pool=pool))
    keys = list(reserved.values_list("pk", flat=True).distinct())
    return Reserved(now, tuple(holds_of(Q(pk__in=keys), now=now)) if keys else ())


def overrun(*, now: datetime) -> dict[str, datetime]:
    """Which best-effort claims must go, by uid, and when: a reservation is about to begin on the room they use.

    Whoever was placed first stays longest. Also claims of pools that lend no more: they came while it did.
    """
    soon = now + NOTICE
    near = Reservation.objects.open().filter(start_at__lte=soon)
    used = Gpu.objects.filter(reservations__in=near, assignments__claim__best_effort=True).exclude(
        assignments__state=AssignmentState.RELEASED
    )
    memory = dict(used.values_list("uuid", "memory_mib"))
    if not memory:
        return {}
    holds = holds_of(Q(uuid__in=memory), now=now, lent=True)
    window = microseconds(now), microseconds(soon) + 1
    gone = calendar.to_yield(holds, memory, *window)
    starts = {
        hold.gpu: max(microseconds(soon), hold.begin_us)
        for hold in sorted(holds, key=lambda hold: -hold.begin_us)
        if hold.kind == calendar.RESERVATION and hold.begin_us < window[1]
    }
    return {hold.holder: moment(starts[hold.gpu]) for hold in holds if hold.holder in gone and hold.gpu in starts}


def promised_to_others(claim: Claim, gpu_ids: Iterable[int], *, now: datetime) -> list[str]:
    """Those of these GPUs on which the claim, whose assignments are written, would be in a reservation's way.

    Asked with the GPUs' rows locked, in the transaction that takes them: a booking locks them too, so what is booked is
    seen here, and who is placed is seen there.
    """
    keys = list(gpu_ids)
    if not Reservation.objects.open().filter(gpus__in=keys).exists():
        return []
    memory = dict(Gpu.objects.filter(pk__in=keys).values_list("uuid", "memory_mib"))
    holds = holds_of(Q(pk__in=keys), now=now)
    if claim.reservation is not None and claim.reservation.state == ReservationState.ACTIVE:
        return _beyond_share(holds, str(claim.reservation.uid), memory)
    # The claim's own hold counts fully here, though it would give way.
    own = [hold if hold.holder != str(claim.uid) else _firm(hold) for hold in holds]
    return calendar.overfull(own, memory, microseconds(now), until(claim, now))


def _firm(hold: Hold) -> Hold:
    return Hold(hold.gpu, hold.core, hold.memory_mib, hold.begin_us, hold.end_us, hold.kind, hold.holder, hold.tenant)


def _beyond_share(holds: list[Hold], reservation: str, memory: Mapping[str, int]) -> list[str]:
    free = [GpuState(uuid, "", 0, "", mib, calendar.WHOLE, mib) for uuid, mib in memory.items()]
    left = {gpu.uuid: gpu for gpu in calendar.room_within(free, holds, reservation)}
    return [
        uuid
        for uuid in sorted(memory)
        if uuid not in left or left[uuid].core_free < 0 or left[uuid].memory_free_mib < 0
    ]
