"""Preview of a GPU's cordon: what it keeps from starting, and what stays."""

from dataclasses import dataclass

from django.db.models import Q

from apps.nodes.models import Gpu
from apps.scheduling.models import Assignment, AssignmentState, Claim, ClaimState, Reservation
from apps.scheduling.models.claim import WAITING
from apps.scheduling.models.reservation import ReservationState


@dataclass(frozen=True, slots=True)
class CordonEffects:
    """The effects of a cordon. `waiting`: pending claims that fit its free share now."""

    claims: int
    waiting: int
    reservations: int
    # True if no other GPU of its model in its pool takes new claims.
    last: bool


def effects_of_cordon(gpu: Gpu) -> CordonEffects:
    """Return the effects; four counts."""
    pool = gpu.node.pool
    others = Gpu.objects.filter(node__pool=pool, model=gpu.model, present=True, cordoned=False, unhealthy="")
    fits = Q(gpu_model=None) | Q(gpu_model__icontains=gpu.model)
    # A claim that waits to resume has no use for other GPUs than its own.
    here = Assignment.objects.filter(gpu=gpu, state=AssignmentState.SUSPENDED)
    waiting = Claim.objects.in_queue().filter(
        Q(fits, state__in=WAITING) | Q(state=ClaimState.RESUMING, pk__in=here.values("claim")),
        pool=pool,
        core_request__lte=gpu.core_free,
        memory_mib__lte=gpu.memory_free_mib,
    )
    return CordonEffects(
        claims=Assignment.objects.filter(gpu=gpu).live().count(),
        waiting=waiting.count(),
        reservations=Reservation.objects.filter(gpus=gpu, state=ReservationState.BOOKED).count(),
        last=not others.filter(node__cordoned=False, node__fenced_at=None).exclude(pk=gpu.pk).exists(),
    )
