"""Core that is lent and borrowed, in the books of claims, assignments and GPUs.

A claim that lends keeps its guarantee: what is charged, what its GPUs bear and what is on its page stay. Only
best-effort claims are placed on what it leaves idle, and those are guaranteed nothing on their pages. So the node's
arbiter gives a claim that wakes its share back in its next round, whatever the control plane is doing, and no promise
is made twice.
"""

from django.db.models import F

from apps.nodes.services import capacity
from apps.quotas.models import Pool
from apps.quotas.models.pool import LENDING_POLICIES
from apps.scheduling.models import Assignment, Claim, ClaimState

# In these it has its guarantee; what leaves them lends no longer.
LENDING_STATES = frozenset({ClaimState.ACTIVE, ClaimState.ASSIGNED})
# In these its processes may still run.
ON_A_GPU = frozenset({ClaimState.ASSIGNED, ClaimState.ACTIVE, ClaimState.FAILED, ClaimState.RELEASING})


def lends(pool: Pool) -> bool:
    """Whether what is lent in this pool is used by others, and is back at once."""
    return pool.sharing_policy in LENDING_POLICIES


def lend(claim: Claim, core: int) -> None:
    """Lend so much on each GPU from now on, under the claim's lock; the caller saves the claim. GPUs in key order."""
    for assignment in _live(claim):
        if more := core - assignment.lent_core:
            Assignment.objects.filter(pk=assignment.pk).update(lent_core=core, version=F("version") + 1)
            capacity.lend(gpu_id=assignment.gpu_id, core=more)
    claim.lent_core = core


def settle(claim: Claim, state: str) -> None:
    """End what a claim that comes to this state lends or borrows no longer; the caller saves the claim."""
    if claim.lent_core and state not in LENDING_STATES:
        lend(claim, 0)
    if claim.borrowed_core and state not in ON_A_GPU:
        give_back(claim)


def give_back(claim: Claim) -> None:
    """It borrows no longer, under its lock; the caller saves the claim. GPUs in key order."""
    for assignment in claim.assignments.filter(borrowed_core__gt=0).order_by("gpu_id"):
        Assignment.objects.filter(pk=assignment.pk).update(borrowed_core=0, version=F("version") + 1)
        capacity.return_borrowed(gpu_id=assignment.gpu_id, core=assignment.borrowed_core)
    claim.borrowed_core = 0


def borrow_other(claim: Claim, core: int) -> bool:
    """A borrowing claim is resized: borrow so much on each GPU instead, or return False where it is not there."""
    for assignment in _live(claim):
        more = core - assignment.borrowed_core
        if more > 0 and not capacity.borrow(gpu_id=assignment.gpu_id, core=more, memory_mib=0):
            return False
        if more < 0:
            capacity.return_borrowed(gpu_id=assignment.gpu_id, core=-more)
        Assignment.objects.filter(pk=assignment.pk).update(borrowed_core=core)
    claim.borrowed_core = core
    return True


def _live(claim: Claim) -> list[Assignment]:
    return list(claim.assignments.exclude(state="released").order_by("gpu_id"))
