"""Booking of windows: the GPUs of a reservation, the obstacles to it, and the earliest free windows.

Of another tenant only the fact that it holds something, and until when, is shown.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from itertools import product
from typing import Any

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from apps.nodes.models import Gpu
from apps.quotas.models import ResourceQuota
from apps.quotas.models.resource import ZERO_WITHOUT_ROW
from apps.quotas.principals import Principal
from apps.quotas.services.refusals import QuotaExceeded
from apps.scheduling.core import calendar
from apps.scheduling.core.calendar import Hold, Obstacle
from apps.scheduling.core.placement import never_fits
from apps.scheduling.core.values import CORDONED, MIG_MODE, GpuState, Placed, Refused, Request
from apps.scheduling.models import Claim, Reservation
from apps.scheduling.services.fleet.devices import could_carry, read_fleet
from apps.scheduling.services.fleet.reserved import holds_of, microseconds, moment
from gpucloud.errors import Busy, Conflict, Invalid

# A claim may take a GPU between choice and lock; this many times in a row is no chance.
ATTEMPTS = 5
# The problems of GPUs that stay until an operator acts.
KEPT = (CORDONED, MIG_MODE)
MOST_WINDOWS = 3
MOST_OBSTACLES = 20


class WindowTaken(Conflict, code="window-taken", title="This window is taken"):
    """No GPUs are free for it through the whole window."""


class ImpossibleReservation(Invalid, code="impossible-reservation", title="This can never be booked"):
    """No machine of the pool could carry it at any time."""


class _Changed(Exception):
    """A chosen GPU was taken before it could be locked."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """The prospects of a booking: `answer` is where it fits, or why not."""

    answer: Placed | Refused
    obstacles: list[Obstacle]
    windows: list[calendar.Window]


@dataclass(frozen=True, slots=True)
class PoolState:
    """A pool's GPUs, and all holds on them, at one moment: for any number of windows."""

    gpus: list[GpuState]
    holds: list[Hold]


def request_for(row: Reservation) -> Request:
    """Return the reservation's request to the core."""
    return Request(row.gpu_count, row.core_request, row.memory_mib, row.gpu_model)


def refuse_impossible(row: Reservation) -> None:
    """Raise ImpossibleReservation if the pool has GPUs and none could carry it, were they all there and free."""
    if could_carry(row.pool, request_for(row)):
        return
    fleet = read_fleet(row.pool)
    if fleet and (reasons := never_fits(fleet, request_for(row))):
        raise ImpossibleReservation(
            f"No GPU of pool {row.pool.name} could ever carry this: "
            + "; ".join(reason.detail.replace("free", "at all") for reason in reasons)
            + ".",
            reasons=[asdict(reason) for reason in reasons],
        )


def outlook(row: Reservation, seen: PoolState) -> Outlook:
    """Return where the reservation fits as everything stands; else what is in its way and when it would fit."""
    gpus, holds, request, (begin, end) = seen.gpus, seen.holds, request_for(row), window_of(row)
    answer = calendar.book(gpus, holds, request, begin, end)
    if isinstance(answer, Placed):
        return Outlook(answer, [], [])
    return Outlook(
        answer,
        calendar.obstacles(gpus, holds, request, begin, end),
        calendar.windows(gpus, holds, request, length=end - begin, after=begin, count=MOST_WINDOWS),
    )


def read(rows: Sequence[Reservation], *, ready: bool = False) -> PoolState:
    """Read what these reservations need; they are of one pool, and new unless there is only one.

    `ready`: only nodes that are online. A node that is lost may be back in time, a cordoned one may not be used.
    """
    row = rows[0]
    gpus = read_fleet(row.pool)
    if not ready:
        usable = Gpu.objects.filter(node__pool=row.pool, present=True, cordoned=False, node__cordoned=False)
        usable = usable.filter(mig__isnull=True)
        uuids = set(usable.values_list("uuid", flat=True))
        gpus = [
            replace(gpu, schedulable=gpu.uuid in uuids, unhealthy=gpu.unhealthy if gpu.unhealthy in KEPT else "")
            for gpu in gpus
        ]
    return PoolState(gpus, holds_of(Q(node__pool=row.pool), now=timezone.now(), but=_itself(rows)))


def _itself(rows: Sequence[Reservation]) -> Reservation | None:
    """Return the reservation that is not in its own way: a booked one; None for new ones."""
    assert len(rows) == 1 or all(row.pk is None for row in rows)
    return rows[0] if rows[0].pk else None


def window_of(row: Reservation) -> tuple[int, int]:
    """Return the part of the window that is still to come, in microseconds."""
    return microseconds(max(row.start_at, timezone.now())), microseconds(row.end_at)


def choose(rows: Sequence[Reservation], *, principal: Principal, ready: bool = False) -> list[list[Gpu]]:
    """Return locked GPUs for each reservation. None of the windows may overlap another. Raises WindowTaken."""
    for _ in range(ATTEMPTS):
        seen = read(rows, ready=ready)
        found = [_fitting(row, principal, seen) for row in rows]
        try:
            with transaction.atomic():
                return _locked([(row, answer.gpus) for row, answer in zip(rows, found, strict=True)])
        except _Changed:
            continue
    raise Busy("Claims keep taking the GPUs that were chosen: try again.")


def _fitting(row: Reservation, principal: Principal, seen: PoolState) -> Placed:
    found = outlook(row, seen)
    if isinstance(found.answer, Refused):
        raise WindowTaken(words(row, found), **facts_of(row, found, principal))
    return found.answer


def keep(row: Reservation) -> bool:
    """Lock the reservation's own GPUs; return True if they have the room in its new window."""
    try:
        with transaction.atomic():
            _locked([(row, tuple(row.gpus.values_list("uuid", flat=True)))])
    except _Changed:
        return False
    return True


def stuck(row: Reservation, principal: Principal) -> WindowTaken:
    """Return the refusal of a longer window for a reservation that has begun: it cannot move to other GPUs."""
    own = list(row.gpus.values_list("uuid", flat=True))
    pool = read([row])
    there = [gpu for gpu in pool.gpus if gpu.uuid in own]
    found = calendar.obstacles(there, pool.holds, request_for(row), *window_of(row))
    seen = Outlook(Refused(()), found, [])
    return WindowTaken("Its GPUs are promised to others in the longer window.", **facts_of(row, seen, principal))


def _locked(wanted: Sequence[tuple[Reservation, tuple[str, ...]]]) -> list[list[Gpu]]:
    """Lock the GPUs, in key order, and check them again under the locks.

    Raises _Changed; the locks are then given up.
    """
    uuids = {uuid for _, gpus in wanted for uuid in gpus}
    rows = Gpu.objects.select_for_update(no_key=True).filter(uuid__in=uuids).order_by("pk")
    gpus = {gpu.uuid: gpu for gpu in rows}
    which = Q(pk__in=[gpu.pk for gpu in gpus.values()])
    holds = calendar.by_gpu(holds_of(which, now=timezone.now(), but=_itself([row for row, _ in wanted])))
    for row, chosen in wanted:
        for uuid in chosen:
            core, memory_mib = calendar.peak(holds.get(uuid, ()), *window_of(row), booking=True)
            short = core + row.core_request > calendar.WHOLE or memory_mib + row.memory_mib > gpus[uuid].memory_mib
            if short:
                raise _Changed
    return [[gpus[uuid] for uuid in chosen] for _, chosen in wanted]


def words(row: Reservation, seen: Outlook) -> str:
    """Return why it is refused, and what would fit instead."""
    assert isinstance(seen.answer, Refused)
    why = "; ".join(reason.detail for reason in seen.answer.reasons)
    length = timedelta(seconds=round((window_of(row)[1] - window_of(row)[0]) / 1_000_000))
    if seen.windows:
        first = moment(seen.windows[0].begin_us)
        hint = f"The earliest window of this length ({length}) begins {first:%Y-%m-%d %H:%M:%S} UTC."
    else:
        hint = "No window of this length will be free: ask for less, or for other GPUs."
    return f"In this window {why}. {hint}"


def facts_of(row: Reservation, seen: Outlook, principal: Principal) -> dict[str, Any]:
    """Return the obstacles and the free windows, as far as the caller may see them."""
    reasons = [] if isinstance(seen.answer, Placed) else [asdict(reason) for reason in seen.answer.reasons]
    return {
        "reasons": reasons,
        "conflicts": [_describe(item, row, principal) for item in seen.obstacles[:MOST_OBSTACLES]],
        "windows": [
            {"start_at": moment(item.begin_us), "end_at": moment(item.end_us), "gpus": list(item.gpus)}
            for item in seen.windows
        ],
    }


def _describe(item: Obstacle, row: Reservation, principal: Principal) -> dict[str, Any]:
    until = None if item.until_us is None else moment(item.until_us)
    ends = f"until {until:%Y-%m-%d %H:%M:%S} UTC" if until else "without an end"
    facts = {"kind": item.kind, "tenant": None, "uid": None, "name": None, "gpus": item.gpus, "until": until}
    if item.kind == calendar.OUTSIDE:
        return {**facts, "detail": f"Used by pods without a claim, {ends}"}
    model: Any = Claim if item.kind == calendar.CLAIM else Reservation
    own = model.objects.visible_to(principal).filter(uid=item.holder).first()
    if own is None:
        return {**facts, "detail": f"Held by another tenant {ends}"}
    named = {"tenant": item.tenant, "uid": item.holder, "name": own.name}
    return {**facts, **named, "detail": f"Held by {item.kind} {own.name} of {item.tenant} {ends}"}


def refuse_over_quota(rows: Sequence[Reservation]) -> None:
    """Raise QuotaExceeded if the tenant's reservations together would pass its quota within one of the windows.

    A booking charges nothing: this refuses early what would otherwise be refused when it begins. The rows are alike but
    for their windows, which do not overlap.
    """
    row = rows[0]
    wanted = {resource: amount for resource, amount in row.amounts.items() if amount}
    quotas = ResourceQuota.objects.filter(Q(pool=row.pool) | Q(pool=None), tenant=row.tenant, resource__in=wanted)
    limited = list(quotas.select_related("pool").order_by("pk"))
    for resource in set(ZERO_WITHOUT_ROW) & wanted.keys() - {quota.resource for quota in limited}:
        raise QuotaExceeded(resource=resource, pool=row.pool.name, hard=0, used=0, requested=wanted[resource])
    if all(quota.most is None for quota in limited):
        return
    keys = [row.pk for row in rows if row.pk]
    others = list(Reservation.objects.open().filter(tenant=row.tenant).exclude(pk__in=keys))
    for one, quota in product(rows, limited):
        if quota.most is None:
            continue
        booked = _booked(one, quota, others)
        if booked + wanted[quota.resource] > quota.most:
            facts = {"hard": quota.most, "used": booked, "requested": wanted[quota.resource]}
            pool = quota.pool.name if quota.pool else None
            raise QuotaExceeded(resource=quota.resource, pool=pool, **facts)


def _booked(row: Reservation, quota: ResourceQuota, others: Sequence[Reservation]) -> int:
    """Return the most of the quota's resource that the tenant's other reservations have at one time of the window."""
    booked = [
        (other.start_at, other.end_at, other.amounts[quota.resource])
        for other in others
        if other.start_at < row.end_at and other.end_at > row.start_at and quota.pool_id in (None, other.pool_id)
    ]
    moments = {row.start_at, *(start for start, _, _ in booked if start > row.start_at)}
    return max(sum(amount for start, end, amount in booked if start <= at < end) for at in moments)


def without_gpus(row: Reservation) -> bool:
    """Return True if a GPU of the reservation is gone, cordoned or unhealthy, or on a node that is cordoned or lost."""
    states = {gpu.uuid: gpu.schedulable for gpu in read_fleet(row.pool)}
    return not all(states.get(uuid, False) for uuid in row.gpus.values_list("uuid", flat=True))
