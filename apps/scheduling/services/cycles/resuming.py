"""Suspended claims in the queue: each gets its share of its own GPUs back, or one of others of its node."""

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any

from django.db.models import F, Q
from django.utils import timezone

from apps.nodes.models import Gpu
from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.gangs import both, place_all
from apps.scheduling.core.queue import Ask
from apps.scheduling.core.values import GpuState, Held, NodeState, Placed, Refused, Request
from apps.scheduling.models import Assignment, AssignmentState, Claim, ClaimState
from apps.scheduling.services.fleet.reserved import all_but
from apps.scheduling.services.fleet.resume_places import ResumePlaces, read_resume_places

Answer = tuple[Placed, ...] | Refused


def may_have(claim: Claim, gpus: Collection[int]) -> bool:
    """Return False if the claim waits to resume, and cannot do so on these GPUs (keys)."""
    if claim.state != ClaimState.RESUMING:
        return True
    suspended = Q(claim=claim, state=AssignmentState.SUSPENDED)
    places = read_resume_places(suspended).get(str(claim.uid), ResumePlaces())
    uuids = set(Gpu.objects.filter(pk__in=gpus).values_list("uuid", flat=True))
    return len(uuids) == len(places.own) and uuids <= places.all


def place_resumed(fleet: Fleet, ask: Ask, places: ResumePlaces, *, held: Held) -> tuple[Answer, Held]:
    """Place the claim on its own GPUs if they have room, else on any of its places; return what was withheld for that.

    `held` withholds all GPUs that are not places of it.
    """
    if places.own != places.all:
        own = both(held, all_but(places.own, fleet.some_gpus(places.all)))
        answer = place_all(fleet, ask, held=own)
        if not isinstance(answer, Refused):
            return answer, own
    return place_all(fleet, ask, held=held), held


def grant_resume(claim: Claim, gpus: Collection[int]) -> None:
    """Want the claim's programs back on these GPUs, whose room was just taken. The caller numbers the nodes' frames.

    Of several assignments, those whose own GPUs are among these stay there.
    """
    now = timezone.now()
    rows = Assignment.objects.filter(claim=claim, state=AssignmentState.SUSPENDED)
    rows.update(
        state=AssignmentState.RESUMING,
        held_core=claim.core_request,
        held_memory_mib=claim.memory_mib,
        generation=F("generation") + 1,
        version=F("version") + 1,
        updated_at=now,
    )
    leaving = Assignment.objects.filter(claim=claim, state=AssignmentState.RESUMING).exclude(gpu__in=gpus)
    own = claim.assignments.live().values_list("gpu_id", flat=True)
    free = sorted(set(gpus) - set(own))
    for key, target in zip(leaving.order_by("gpu_id").values_list("pk", flat=True), free, strict=True):
        Assignment.objects.filter(pk=key).update(gpu=target, return_gpu=F("gpu"))
    Claim.objects.filter(pk=claim.pk).update(
        generation=F("generation") + 1,
        assigned_at=without_pause(claim, now),
        reasons=[],
        version=F("version") + 1,
        updated_at=now,
    )


def without_pause(claim: Claim, now: datetime) -> datetime | None:
    """Return the beginning from which its time limit counts: the time in which it had no GPU does not count."""
    pauses = [datetime.fromisoformat(at) for state, at in claim.timeline if state == ClaimState.SUSPENDED]
    if claim.assigned_at is None or not pauses:
        return claim.assigned_at
    return claim.assigned_at + (now - pauses[-1])


def explain_places(
    request: Request, gpus: Iterable[GpuState], nodes: Iterable[NodeState], *, held: Held, policy: str
) -> Refused | None:
    """Return why the GPUs on which the claim may resume (`gpus`) have no room for it; None if they have."""
    answer: Any = Fleet(gpus, nodes, policy=policy).place(request, held=held)
    return answer if isinstance(answer, Refused) else None
