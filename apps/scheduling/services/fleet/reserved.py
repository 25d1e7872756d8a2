"""Reservations, claims and other uses of a pool's GPUs, as holds of the core's calendar."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import Exists, Q, QuerySet

from apps.nodes.models import Gpu
from apps.quotas.models import Pool
from apps.scheduling.core import calendar
from apps.scheduling.core.calendar import FOREVER, Hold, Room
from apps.scheduling.core.gangs import both
from apps.scheduling.core.values import GpuState
from apps.scheduling.models import Assignment, AssignmentState, Claim, ClaimState, Reservation, ReservationState
from apps.scheduling.models.claim import IN_QUEUE
from apps.scheduling.services.fleet.resume_places import ResumePlaces, read_resume_places
from gpucloud.fastpath.compiled_queries import compiled_query

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
# Borrowers of reserved room get this notice before the reservation begins, and from then on may borrow no more of it.
NOTICE = timedelta(minutes=2)
# A claim that is being released, or past its time limit, still needs 10 s for its processes and the agent's answer.
ENDING = timedelta(seconds=30)
# The columns from which a hold of an assignment is made.
OF_ASSIGNMENT = (
    "state", "held_core", "held_memory_mib", "gpu__uuid",
    "claim__uid", "claim__best_effort", "claim__time_limit_seconds", "claim__assigned_at", "claim__yields_at",
    "claim__tenant__slug", "claim__pool__lend_reserved", "claim__reservation__uid", "claim__reservation__state",
    "claim__reservation__end_at",
)  # fmt: skip


def microseconds(moment: datetime) -> int:
    """Return the moment as microseconds since 1970, exactly."""
    return (moment - EPOCH) // MICROSECOND


def moment(at_us: int) -> datetime:
    """Return the datetime of microseconds since 1970."""
    return EPOCH + at_us * MICROSECOND


def holds_of(gpus: Q, *, now: datetime, but: Reservation | None = None, lent: bool = False) -> list[Hold]:
    """Return all holds on these GPUs from now on (`gpus` filters Gpu): four queries.

    `but`: without one reservation and its claims. `lent`: all best-effort claims yield, whatever their pool's setting.
    """
    own = None if but is None else str(but.uid)
    return [
        *_of_reservations(gpus, now, but),
        *(hold for hold in _of_claims(gpus, now, lent) if own is None or hold.within != own),
        *_of_nobody(gpus),
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
        # A reservation past its end remains only until the clock's next run.
        begin = min(start_at, now) if state == ReservationState.ACTIVE else start_at
        yield Hold(
            gpu, core, memory_mib, microseconds(begin), microseconds(end_at), calendar.RESERVATION, str(uid), tenant
        )


def _of_nobody(gpus: Q) -> Iterable[Hold]:
    """Return holds for the use of GPUs without a claim."""
    rows = Gpu.objects.filter(Q(core_outside__gt=0) | Q(memory_outside_mib__gt=0), gpus)
    for gpu, core, memory_mib in rows.order_by("pk").values_list("uuid", "core_outside", "memory_outside_mib"):
        yield Hold(gpu, core, memory_mib, 0, FOREVER, calendar.OUTSIDE, calendar.OUTSIDE, "")


def _of_claims(gpus: Q, now: datetime, lent: bool) -> Iterable[Hold]:
    there = Gpu.objects.filter(gpus)
    live = Assignment.objects.live().select_related("gpu", "claim__tenant", "claim__pool", "claim__reservation")
    held = [(row.gpu.uuid, row) for row in live.filter(gpu__in=there).only(*OF_ASSIGNMENT).order_by("pk")]
    # One that moves holds as much on a second GPU.
    moving = live.filter(other_gpu__in=there).select_related("other_gpu").only(*OF_ASSIGNMENT, "other_gpu__uuid")
    held += [(row.other_gpu.uuid, row) for row in moving.order_by("pk") if row.other_gpu is not None]
    for uuid, row in held:
        claim, within = row.claim, None
        if claim.reservation is not None and claim.reservation.state == ReservationState.ACTIVE:
            within = str(claim.reservation.uid)
        yield Hold(
            uuid,
            row.held_core,
            row.held_memory_mib,
            0,
            _end_of(row, now),
            calendar.CLAIM,
            str(claim.uid),
            claim.tenant.slug,
            yields=borrows(claim, claim.pool) or (lent and claim.best_effort and claim.reservation_id is None),
            within=within,
        )


def _end_of(row: Assignment, now: datetime) -> int:
    soon = microseconds(now + ENDING)
    if row.state == AssignmentState.RELEASING:
        return soon
    ends = [item for item in (limit_of(row.claim, row.claim.assigned_at or now), row.claim.yields_at) if item]
    return max(soon, min(map(microseconds, ends))) if ends else FOREVER


def limit_of(claim: Claim, begin: datetime) -> datetime | None:
    """Return the end of a claim that begins then, by its time limit or reservation; None if it has none."""
    limits = [] if claim.time_limit_seconds is None else [begin + timedelta(seconds=claim.time_limit_seconds)]
    if claim.reservation is not None:
        limits.append(claim.reservation.end_at)
    return min(limits, default=None)


def borrows(claim: Claim, pool: Pool) -> bool:
    """Return True if the claim may use reserved room, and yields it."""
    return claim.best_effort and pool.lend_reserved and claim.reservation_id is None


# Claims with the same request and the same terms get one answer at one moment.
Terms = tuple[int | None, bool, int | None]


@dataclass(slots=True)
class Reserved:
    """The reservations of a pool at one moment, for a round; made by `read_reserved`."""

    pool: Pool
    now: datetime
    holds: list[Hold]
    # GPUs that are being freed for a claim, by its uid (`services.reclaiming.preemption`, `apps.suspension.rotation`).
    nominated: Mapping[str, Mapping[str, Room]] = field(default_factory=dict)
    # Withheld room by end, computed once for all claims of a queue and updated by placements.
    _until: dict[int, dict[str, Room]] = field(default_factory=dict)
    # The GPUs on which each claim that waits to resume may do so, by its uid; read when one is asked about.
    _places: dict[str, ResumePlaces] | None = None

    def terms(self, claim: Claim) -> Terms | None:
        """Return all of the claim that decides the room withheld from it; None if nothing is reserved."""
        if not self.holds and claim.reservation_id is None:
            return None
        return claim.reservation_id, borrows(claim, self.pool), claim.time_limit_seconds

    def withheld_from(self, claim: Claim, gpus: Callable[[], Iterable[GpuState]]) -> Mapping[str, Room]:
        """Return (core, memory_mib) by GPU uuid that this claim may not use, of the room that is free on `gpus` now."""
        held: Mapping[str, Room] = {}
        if claim.reservation is not None:
            held = self._outside(claim.reservation, list(gpus()))
        elif self.holds:
            end = until(claim, self.pool, self.now)
            if end not in self._until:
                self._until[end] = calendar.withheld(self.holds, microseconds(self.now), end)
            held = self._until[end]
        for uid, rooms in self.nominated.items():
            if uid != str(claim.uid):
                held = both(held, rooms)
        if claim.waits_to_resume:
            held = both(held, all_but(self.resume_places(claim).all, gpus()))
        return held

    def resume_places(self, claim: Claim) -> ResumePlaces:
        """Return the GPUs of a claim that waits to resume: it has no use for others."""
        if self._places is None:
            # A preview asks for a claim that is still suspended.
            states = (ClaimState.SUSPENDED, ClaimState.RESUMING)
            self._places = read_resume_places(Q(claim__pool=self.pool, claim__state__in=states, claim__charged_vgpus=0))
        return self._places.get(str(claim.uid), ResumePlaces())

    def at(self, moment: datetime) -> "Reserved":
        """Return the reservations at another moment, as far as they are known now."""
        return replace(self, now=moment, holds=list(self.holds), _until={})

    def changes(self) -> list[float]:
        """Return the times at which something reserved begins or ends, in Unix seconds."""
        times = {at for hold in self.holds if hold.kind == calendar.RESERVATION for at in (hold.begin_us, hold.end_us)}
        return sorted(at / 1_000_000 for at in times)

    def record_placement(self, claim: Claim, gpus: Iterable[str]) -> None:
        """Record a tentative placement of the claim for later decisions of this cycle."""
        touched = {hold.gpu for hold in self.holds}.intersection(gpus) if self.holds else set[str]()
        if not touched:
            return
        self.holds += _of_new(claim, self.pool, touched, self.now)
        there = [hold for hold in self.holds if hold.gpu in touched]
        for end, room in self._until.items():
            left = {uuid: held for uuid, held in room.items() if uuid not in touched}
            # The mapping is replaced, not changed: the round's record refers to the one before.
            self._until[end] = left | calendar.withheld(there, microseconds(self.now), end)

    def _outside(self, reservation: Reservation, gpus: list[GpuState]) -> dict[str, Room]:
        """Return all room but what the reservation has left: a claim in it runs nowhere else."""
        left = {gpu.uuid: gpu for gpu in calendar.room_within(gpus, self.holds, str(reservation.uid))}
        answer: dict[str, Room] = {}
        for gpu in gpus:
            own = left.get(gpu.uuid)
            room = (own.core_free, own.memory_free_mib) if own else (0, 0)
            answer[gpu.uuid] = gpu.core_free - room[0], gpu.memory_free_mib - room[1]
        return answer


def until(claim: Claim, pool: Pool, now: datetime) -> int:
    """Return the end, in microseconds, of the room that a claim placed now needs.

    A borrower must yield before the owner comes.
    """
    if borrows(claim, pool):
        return microseconds(now + NOTICE)
    end = limit_of(claim, now)
    return FOREVER if end is None else microseconds(end)


def read_reserved(pool: Pool, *, now: datetime, which: Q | None = None) -> Reserved:
    """Read the reservations of the pool: one query if nothing is reserved. `which`: only of these GPUs."""
    # Selected by the GPUs that are in the pool now: a node may come with bookings made in another pool.
    reserved = Gpu.objects.filter(which or Q(), node__pool=pool, reservations__in=Reservation.objects.open())
    keys = list(reserved.values_list("pk", flat=True).distinct())
    return Reserved(pool, now, holds_of(Q(pk__in=keys), now=now) if keys else [], _nominated(pool))


def may_withhold(pool_id: int, gpu_id: int) -> bool:
    """Return False if no reservation is on the GPU and none of the pool's is being freed for a claim: the usual case.

    By compiled queries; `read_reserved` says how much is withheld.
    """
    return bool(_booked_on(gpu_id) or _nominating(pool_id))


def withholds_nothing(pool: Any, gpu: Any) -> Q:
    """Return the opposite as a condition of a queryset. `pool`, `gpu`: keys, or expressions."""
    return ~Exists(_booked_on.build(gpu)) & ~Exists(_nominating.build(pool))


@compiled_query
def _booked_on(gpu: Any) -> QuerySet[Any, tuple[int]]:
    rows = Reservation.gpus.through.objects.filter(gpu=gpu, reservation__in=Reservation.objects.open())
    return rows.order_by().values_list("pk")


@compiled_query
def _nominating(pool: Any) -> QuerySet[Claim, tuple[int]]:
    rows = Claim.objects.filter(IN_QUEUE, pool=pool, nominated_gpus__isnull=False)
    return rows.order_by().values_list("pk")


def _nominated(pool: Pool) -> dict[str, Mapping[str, Room]]:
    rows = Claim.objects.filter(IN_QUEUE, pool=pool, nominated_gpus__isnull=False).order_by("pk")
    columns = rows.values_list("uid", "nominated_gpus", "core_request", "memory_mib")
    return {str(uid): dict.fromkeys(gpus or (), (core, memory)) for uid, gpus, core, memory in columns}


def all_but(some: Collection[str], gpus: Iterable[GpuState]) -> dict[str, Room]:
    """Return all free room of the GPUs but some, by uuid: a claim from which it is withheld gets only those."""
    return {gpu.uuid: (gpu.core_free, gpu.memory_free_mib) for gpu in gpus if gpu.uuid not in some}


def _of_new(claim: Claim, pool: Pool, gpus: Iterable[str], now: datetime) -> list[Hold]:
    """Return the holds of a claim that is being placed."""
    end, within = until(claim, pool, now), str(claim.reservation.uid) if claim.reservation else None
    size, whose = (claim.core_request, claim.memory_mib), (calendar.CLAIM, str(claim.uid), "")
    return [Hold(gpu, *size, 0, end, *whose, within=within) for gpu in gpus]


class Guard:
    """The holds on some locked GPUs, to check that a claim leaves reserved room alone.

    A booking locks the rows too, before it is written: what is booked is seen here, and what is placed is seen there.
    """

    def __init__(self, gpu_ids: Iterable[int], *, now: datetime) -> None:
        self._now, keys = now, list(gpu_ids)
        reserved = Reservation.objects.open().filter(gpus__in=keys).exists()
        self._holds = holds_of(Q(pk__in=keys), now=now) if reserved else None
        self._memory = dict(Gpu.objects.filter(pk__in=keys).values_list("uuid", "memory_mib")) if reserved else {}
        self._uuids = dict(Gpu.objects.filter(pk__in=keys).values_list("pk", "uuid")) if reserved else {}

    def admits(self, claim: Claim, gpu_ids: Iterable[int]) -> bool:
        """Return True if the claim, not yet written, leaves reserved room alone; it then counts for the next one."""
        if self._holds is None:
            return True
        new = _of_new(claim, claim.pool, [self._uuids[key] for key in gpu_ids], self._now)
        if self._broken(claim, {hold.gpu for hold in new}, [*self._holds, *new]):
            return False
        self._holds += new
        return True

    def find_conflicts(self, claim: Claim) -> list[str]:
        """Return the uuids of the GPUs on which the claim, as it is written now, takes reserved room."""
        if self._holds is None:
            return []
        # It counts fully here, though it would yield.
        holds = [replace(hold, yields=False) if hold.holder == str(claim.uid) else hold for hold in self._holds]
        return self._broken(claim, {hold.gpu for hold in holds if hold.holder == str(claim.uid)}, holds)

    def _broken(self, claim: Claim, gpus: set[str], holds: list[Hold]) -> list[str]:
        if claim.reservation is None or claim.reservation.state != ReservationState.ACTIVE:
            window = microseconds(self._now), until(claim, claim.pool, self._now)
            return calendar.overfull(holds, {uuid: self._memory[uuid] for uuid in gpus}, *window)
        whole = [GpuState(uuid, "", 0, "", mib, calendar.WHOLE, mib) for uuid, mib in self._memory.items()]
        left = {gpu.uuid: gpu for gpu in calendar.room_within(whole, holds, str(claim.reservation.uid))}
        return [uuid for uuid in sorted(gpus) if uuid not in left or min(_free(left[uuid])) < 0]


def _free(gpu: GpuState) -> Room:
    return gpu.core_free, gpu.memory_free_mib


def overrun(*, now: datetime) -> dict[str, datetime]:
    """Return the best-effort claims that must yield, by uid, and when: a reservation is about to begin on their room.

    The claims placed first stay longest. Claims of pools that no longer lend reserved room are included: they were
    placed while the pool did.
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
