"""A pool as the rotation's core takes it; a few queries, whatever the number of claims."""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Q

from apps.nodes.models import Gpu
from apps.nodes.services import latest
from apps.quotas.models import Pool, Resource, ResourceQuota
from apps.quotas.models.pool import BackEnd
from apps.scheduling.models import Assignment, AssignmentState, Claim, ClaimState, Reservation
from apps.scheduling.services.claims.lifecycle import request_of
from apps.scheduling.services.claims.suspension_reports import SUSPEND_REFUSED
from apps.scheduling.services.fleet.devices import labels_of
from apps.scheduling.services.fleet.resume_places import ResumePlaces, read_resume_places
from apps.suspension.rotation import measured
from apps.suspension.rotation import planning as core
from apps.suspension.rotation.parts import (
    in_since,
    is_nominated,
    is_out,
    is_paused,
    key_of,
    served_seconds,
    share_of_gpu,
    takes_part,
)

# A claim whose programs the driver refused to suspend runs on for so long before it is tried again.
REFUSED_FOR = timedelta(minutes=10)
# New claims of one queue that a run considers, in the queue's order.
MOST_NEWCOMERS = 50
OUT = (ClaimState.SUSPENDED, ClaimState.RESUMING)
IN_FORCE = frozenset({AssignmentState.IN_FORCE, AssignmentState.OVER_LIMIT})
MIB = 1 << 20
MOVING = frozenset({ClaimState.ASSIGNED, ClaimState.SUSPENDING, ClaimState.RELEASING})
# Reasons of a claim that a GPU's room would not help.
NOT_ROOM = frozenset({"quota-exceeded", "budget-exceeded", "member-limit-exceeded", "set-aside"})


@dataclass(slots=True)
class Pictured:
    """The scene for the core, and its claims by their keys there. `moving`: GPUs that claims leave or enter now."""

    scene: core.Scene
    claims: dict[str, Claim]
    moving: frozenset[str]


def picture(pool: Pool, *, now: datetime, barred: Collection[str] = ()) -> Pictured:
    """Read the pool. `barred`: claims, by key, that are not to go out in this run."""
    gpus = list(Gpu.objects.filter(node__pool=pool, present=True).select_related("node").order_by("pk"))
    held = _read_held(gpus)
    claims = {key_of(row.claim): row.claim for rows in held.values() for row in rows}
    waiting = [claim for claim in _queue(pool, now) if key_of(claim) not in claims]
    claims |= {key_of(claim): claim for claim in waiting}
    reader = _Reader(now, barred, {gpu.pk: gpu for gpu in gpus}, held)
    reader.places = read_resume_places(Q(claim__pool=pool, claim__state__in=OUT, claim__charged_vgpus=0))
    moving = reader.moving()
    usable = [gpu for gpu in gpus if gpu.state == gpu.node.state == "ready" and is_movable(gpu)]
    busy = moving | _withheld(usable)
    kept = {uuid: key for key, claim in claims.items() if is_nominated(claim) for uuid in claim.nominated_gpus or ()}
    shared = [reader.shared_gpu(gpu, busy=gpu.uuid in busy, kept_for=kept.get(gpu.uuid)) for gpu in usable]
    inside, out = reader.members()
    new = [reader.newcomer(claim, usable) for claim in waiting]
    scene = core.Scene(shared, inside, [*out, *new], _budgets(pool, gpus, claims.values()), now.timestamp())
    return Pictured(scene, claims, frozenset(moving))


def is_movable(gpu: Gpu) -> bool:
    """Return True if programs on the GPU can be suspended."""
    return gpu.node.can_suspend and gpu.backend != BackEnd.MPS


def _read_held(gpus: Iterable[Gpu]) -> dict[str, list[Assignment]]:
    """Return the live assignments on these GPUs by the key of their claim."""
    rows = Assignment.objects.filter(gpu__in=[gpu.pk for gpu in gpus]).live()
    found: dict[str, list[Assignment]] = defaultdict(list)
    for row in rows.select_related("claim__tenant", "claim__pool", "claim__rotation").order_by("claim_id", "gpu_id"):
        found[key_of(row.claim)].append(row)
    return found


def _queue(pool: Pool, now: datetime) -> list[Claim]:
    """Return the claims of the queue that would come in if there was room: refused by a round, and for their room."""
    rows = Claim.objects.filter(Q(start_at=None) | Q(start_at__lte=now), pool=pool, state=ClaimState.QUEUED)
    rows = rows.filter(affinity=None, anti_affinity=None, exclusion=None, charged_vgpus__gt=0, preempt_at=None)
    rows = rows.select_related("tenant", "pool", "rotation").order_by("-priority", "pk")[:MOST_NEWCOMERS]
    return [claim for claim in rows if takes_part(claim) and not is_paused(claim, now) and _lacks_room(claim)]


def _lacks_room(claim: Claim) -> bool:
    return bool(claim.reasons) and not NOT_ROOM & {reason["code"] for reason in claim.reasons}


def _withheld(gpus: list[Gpu]) -> set[str]:
    """Return the GPUs that are reserved, or are being freed for a claim by somebody else."""
    booked = Reservation.gpus.through.objects.filter(
        gpu__in=[gpu.pk for gpu in gpus], reservation__in=Reservation.objects.open()
    )
    found = set(booked.values_list("gpu__uuid", flat=True))
    nominated = Claim.objects.in_queue().filter(nominated_gpus__isnull=False, rotation__nominated_at=None)
    for uuids in nominated.values_list("nominated_gpus", flat=True):
        found.update(uuids or ())
    return found


def _budgets(pool: Pool, gpus: Iterable[Gpu], claims: Iterable[Claim]) -> dict[str, int]:
    """Return what is left of host memory: of each node, and of each tenant that is limited."""
    found = {f"node {gpu.node_id}": gpu.node.host_memory_mib - gpu.node.host_memory_used_mib for gpu in gpus}
    tenants = {claim.tenant_id for claim in claims}
    rows = ResourceQuota.objects.filter(
        Q(pool=pool) | Q(pool=None), tenant__in=tenants, resource=Resource.HOST_MEMORY_MIB, hard__isnull=False
    )
    for row in rows:
        key, left = f"tenant {row.tenant_id}", (row.hard or 0) - row.used
        found[key] = min(left, found.get(key, left))
    return found


class _Reader:
    """Makes the core's values out of rows."""

    def __init__(
        self, now: datetime, barred: Collection[str], gpus: dict[int, Gpu], held: dict[str, list[Assignment]]
    ) -> None:
        self.now, self.barred, self.gpus, self.held = now, barred, gpus, held
        self.places: dict[str, ResumePlaces] = {}
        self.on_gpu: dict[int, list[Claim]] = defaultdict(list)
        _, self.samples = latest.samples()
        for rows in held.values():
            for row in rows:
                self.on_gpu[row.gpu_id].append(rows[0].claim)

    def moving(self) -> set[str]:
        """Return the GPUs that a claim leaves or enters at this moment."""
        found = set[str]()
        for rows in self.held.values():
            claim = rows[0].claim
            comes = claim.state == ClaimState.RESUMING and not claim.waits_to_resume
            if claim.state in MOVING or comes:
                found.update(self.gpus[key].uuid for row in rows for key in row.gpus_held)
        return found

    def shared_gpu(self, gpu: Gpu, *, busy: bool, kept_for: str | None) -> core.SharedGpu:
        """Return the GPU with what is free, and what all claims on it ask for."""
        there = self.on_gpu[gpu.pk]
        return core.SharedGpu(
            gpu.uuid,
            gpu.node.name,
            gpu.memory_mib,
            gpu.core_free,
            gpu.memory_free_mib,
            sum(claim.core_request for claim in there) + gpu.core_outside,
            sum(claim.memory_mib for claim in there) + gpu.memory_outside_mib,
            busy=busy,
            kept_for=kept_for,
            group=f"{gpu.node_id} {gpu.model}" if gpu.node.can_move else "",
        )

    def members(self) -> tuple[list[core.Member], list[core.Member]]:
        """Return the claims that are in, and those that are out and wait."""
        inside, out = [], []
        for rows in self.held.values():
            claim = rows[0].claim
            if claim.state == ClaimState.ACTIVE:
                inside.append(self._member(claim, rows, since=in_since(claim, rows), stays=self._stays(claim, rows)))
            elif (is_out(claim) or claim.waits_to_resume) and not is_paused(claim, self.now):
                since = measured.last(claim.timeline, ClaimState.SUSPENDED) or claim.updated_at
                out.append(self._member(claim, rows, since=since, stays=False))
        return inside, out

    def newcomer(self, claim: Claim, usable: Iterable[Gpu]) -> core.Member:
        """Return a claim that was never in, with the GPUs that it may have."""
        request = request_of(claim)
        selector = dict(request.node_selector).items()
        allowed = (gpu for gpu in usable if not request.models or gpu.model in request.models)
        return core.Member(
            key_of(claim),
            claim.core_request,
            claim.memory_mib,
            claim.gpu_count,
            gpus=tuple(claim.nominated_gpus or ()) if is_nominated(claim) else (),
            allowed=frozenset(gpu.uuid for gpu in allowed if selector <= labels_of(gpu.node).items()),
            priority=claim.priority,
            served=served_seconds(claim, 0.0, now=self.now, since=self.now),
            since=(claim.waiting_since or claim.created_at).timestamp(),
            # It has nothing to bring back yet.
            in_seconds=0.0,
        )

    def _member(self, claim: Claim, rows: list[Assignment], *, since: datetime, stays: bool) -> core.Member:
        keys = {row.gpu_id for row in rows}
        beside = {one.pk: one for key in keys for one in self.on_gpu[key] if one.pk != claim.pk}
        timelines = [one.timeline for one in beside.values()]
        kept = claim.nominated_gpus if is_nominated(claim) else None
        draws = {f"node {self.gpus[key].node_id}" for key in keys} | {f"tenant {claim.tenant_id}"}
        return core.Member(
            key_of(claim),
            claim.core_request,
            claim.memory_mib,
            claim.gpu_count,
            gpus=tuple(kept or (self.gpus[row.gpu_id].uuid for row in rows)),
            allowed=frozenset() if kept else self.places.get(str(claim.uid), ResumePlaces()).all,
            priority=claim.priority,
            served=served_seconds(claim, self._share(rows), now=self.now, since=since),
            since=since.timestamp(),
            draws=tuple(sorted(draws)),
            stays=stays,
            moved_mib=self._moved_mib(rows),
            out_seconds=measured.seconds_out(claim.timeline),
            in_seconds=measured.seconds_in(claim.timeline, timelines),
        )

    def _share(self, rows: list[Assignment]) -> float:
        return sum(share_of_gpu(rows[0].claim, self.gpus[row.gpu_id]) for row in rows)

    def _moved_mib(self, rows: list[Assignment]) -> int | None:
        """Return the memory that its programs use, or that is saved of them; None if it is not known."""
        if rows[0].claim.state != ClaimState.ACTIVE:
            return sum(row.held_host_memory_mib for row in rows)
        found = [self.samples.get(row.uid) for row in rows]
        known = [one.memory_bytes for one in found if one is not None and one.memory_bytes is not None]
        return sum(known) // MIB if len(known) == len(rows) else None

    def _stays(self, claim: Claim, rows: list[Assignment]) -> bool:
        leaves = claim.preempt_at is not None or claim.yields_at is not None
        unsettled = any(row.state not in IN_FORCE for row in rows) or len(rows) < claim.gpu_count
        began = measured.last(claim.timeline, ClaimState.ACTIVE) or claim.updated_at
        refused = any(reason["code"] == SUSPEND_REFUSED for reason in claim.reasons) and began > self.now - REFUSED_FOR
        return not takes_part(claim) or leaves or unsettled or refused or key_of(claim) in self.barred
