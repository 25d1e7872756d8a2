"""Suspended claims in the queue: each waits for the GPUs on which it was suspended, and gets its share of them back."""

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any

from django.db.models import F
from django.utils import timezone

from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.values import GpuState, Held, NodeState, Refused, Request
from apps.scheduling.models import Assignment, AssignmentState, Claim, ClaimState


def has_own_gpus(claim: Claim, gpus: Collection[int]) -> bool:
    """Return False if the claim waits to resume, and on other GPUs than these (keys)."""
    if claim.state != ClaimState.RESUMING:
        return True
    own = Assignment.objects.filter(claim=claim, state=AssignmentState.SUSPENDED).values_list("gpu_id", flat=True)
    return set(own) == set(gpus)


def grant_resume(claim: Claim, gpus: Collection[int]) -> None:
    """Want the claim's programs back on its GPUs, whose room was just taken. The caller numbers the nodes' frames."""
    now = timezone.now()
    Assignment.objects.filter(claim=claim, gpu__in=gpus, state=AssignmentState.SUSPENDED).update(
        state=AssignmentState.RESUMING,
        held_core=claim.core_request,
        held_memory_mib=claim.memory_mib,
        generation=F("generation") + 1,
        version=F("version") + 1,
        updated_at=now,
    )
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


def explain_own(
    request: Request, gpus: Iterable[GpuState], nodes: Iterable[NodeState], *, held: Held, policy: str
) -> Refused | None:
    """Return why the claim's own GPUs (`gpus`) have no room for it; None if they have."""
    answer: Any = Fleet(gpus, nodes, policy=policy).place(request, held=held)
    return answer if isinstance(answer, Refused) else None
