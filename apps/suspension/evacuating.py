"""Claims on unhealthy GPUs: moved to other GPUs of their node if they can be, and left there if they cannot."""

from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet

from apps.quotas.principals import SYSTEM
from apps.scheduling import events
from apps.scheduling.models import Assignment, Claim, ClaimState
from apps.scheduling.services.claims.lifecycle import locked
from apps.scheduling.services.claims.suspending import find_refusal
from apps.scheduling.services.claims.suspension_reports import MOVE_REFUSED, SUSPEND_REFUSED
from apps.scheduling.services.failures import each
from apps.suspension.moving import move_claim
from gpucloud.errors import Conflict

# The code of the reason that a claim shows while it stays on an unhealthy GPU.
UNHEALTHY = "gpu-unhealthy"
OURS = [{"code": UNHEALTHY}]


def drive() -> int:
    """Order the moves that are possible, and write why the others are not; return the number of claims changed."""
    sick = Assignment.objects.live().filter(claim=OuterRef("pk")).exclude(gpu__unhealthy="")
    active = Claim.objects.filter(state=ClaimState.ACTIVE)
    # A claim that has a notice to leave is left to who gave it.
    there = active.filter(Exists(sick), rebalance=True, preempt_at=None, yields_at=None, pod__isnull=True)
    return each(_in_order(there), _move) + each(_in_order(active.filter(~Exists(sick), reasons__contains=OURS)), _clear)


def _in_order(claims: QuerySet[Claim]) -> QuerySet[Claim]:
    return claims.select_related("tenant", "pool").order_by("pk")


@transaction.atomic
def _move(seen: Claim) -> bool:
    """Move the claim, once: what its node has refused is not tried again."""
    claim = locked(seen)
    if claim.state != ClaimState.ACTIVE or find_refusal(claim, MOVE_REFUSED) or find_refusal(claim, SUSPEND_REFUSED):
        return False
    try:
        # What was charged before the refusal is undone.
        with transaction.atomic():
            move_claim(principal=SYSTEM, claim=claim)
    except Conflict as error:
        return _explain(claim, error.detail)
    return True


def _explain(claim: Claim, why: str) -> bool:
    """Write why the claim stays, if that is new and its reasons say nothing else."""
    rows = claim.assignments.live().exclude(gpu__unhealthy="").select_related("gpu").order_by("gpu__index")
    sick = [f"GPU {row.gpu.index} is unhealthy ({row.gpu.unhealthy})" for row in rows]
    detail = f"{', '.join(sick)}, and the claim cannot be moved. {why}"
    reasons = [{"code": UNHEALTHY, "gpus": len(sick), "detail": detail}]
    if not sick or claim.reasons == reasons or any(reason["code"] != UNHEALTHY for reason in claim.reasons):
        return False
    claim.change(reasons=reasons)
    events.claim_changed_on_commit(claim)
    return True


@transaction.atomic
def _clear(seen: Claim) -> bool:
    """Remove the reason of a claim whose GPUs are well again."""
    claim = locked(seen)
    if claim.state != ClaimState.ACTIVE or not find_refusal(claim, UNHEALTHY):
        return False
    claim.change(reasons=[])
    events.claim_changed_on_commit(claim)
    return True
