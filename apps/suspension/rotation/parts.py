"""The part of a claim in a rotation, as its rows say it."""

from collections.abc import Iterable
from datetime import datetime

from apps.nodes.models import Gpu
from apps.nodes.models.gpu import WHOLE
from apps.scheduling.models import Assignment, Claim, ClaimState, RotationMember
from apps.scheduling.models.orders import SuspendedBy


def key_of(claim: Claim) -> str:
    """Return the claim's key in a scene of the core."""
    return str(claim.pk)


def part_of(claim: Claim) -> RotationMember | None:
    """Return the claim's part in a rotation; None if it takes no part in one."""
    found: RotationMember | None = getattr(claim, "rotation", None)
    return found


def takes_part(claim: Claim) -> bool:
    """Return True if the claim is of a kind that can be put aside, and its owner lets the platform act on it."""
    alone = claim.pod is None and claim.reservation_id is None and claim.group is None
    return alone and claim.rebalance and not claim.borrowed_core


def is_out(claim: Claim) -> bool:
    """Return True if the rotation has put the claim aside, and it has not been granted its GPUs yet."""
    waits = claim.state == ClaimState.SUSPENDED or claim.waits_to_resume
    return waits and claim.suspended_by == SuspendedBy.ROTATION


def is_nominated(claim: Claim) -> bool:
    """Return True if the rotation frees GPUs for the claim, and it still waits for them."""
    part = part_of(claim)
    return part is not None and part.nominated_at is not None and claim.nominated_gpus is not None and claim.waiting


def is_paused(claim: Claim, now: datetime) -> bool:
    """Return True if the claim could not come in a while ago, and is not tried again yet."""
    part = part_of(claim)
    return part is not None and part.paused_until is not None and part.paused_until > now


def in_since(claim: Claim, rows: Iterable[Assignment]) -> datetime:
    """Return the time since when the programs of an active claim can run."""
    return max((row.in_force_at for row in rows if row.in_force_at is not None), default=claim.updated_at)


def share_of_gpu(claim: Claim, gpu: Gpu) -> float:
    """Return the claim's share of the GPU: the larger one of core and memory."""
    return max(claim.core_request / WHOLE, claim.memory_mib / gpu.memory_mib)


def served_seconds(claim: Claim, share: float, *, now: datetime, since: datetime) -> float | None:
    """Return the GPU-seconds that the claim was served; None if it takes no part.

    `share`: of all its GPUs together; `since`: the time since when it is in, if it is.
    """
    part = part_of(claim)
    if part is None or part.served_ms is None:
        return None
    served = part.served_ms / 1000
    if claim.state == ClaimState.ACTIVE:
        served += share * max(0.0, (now - max(part.counted_to, since)).total_seconds())
    return served
