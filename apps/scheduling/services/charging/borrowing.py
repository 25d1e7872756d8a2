"""Borrowing: lent and borrowed core in the rows of claims, assignments and GPUs.

A claim that lends keeps its guarantee: its charges, the use of its GPUs and its limits page stay as they are. Only
best-effort claims are placed on the core that it leaves idle, and their limits pages guarantee nothing. So the node's
arbiter gives a claim that wakes its share back in its next round, whatever the control plane is doing, and no core is
guaranteed twice.
"""

from django.db.models import F

from apps.nodes.services import capacity
from apps.quotas.models import Pool
from apps.quotas.models.pool import LENDING_POLICIES, BackEnd
from apps.scheduling.models import Assignment, Claim, ClaimState

# In these states a claim has its guarantee; a claim that leaves them no longer lends.
LENDING_STATES = frozenset({ClaimState.ACTIVE, ClaimState.ASSIGNED})
# In these states its processes may still run.
ON_A_GPU = frozenset(
    {ClaimState.ASSIGNED, ClaimState.ACTIVE, ClaimState.SUSPENDING, ClaimState.FAILED, ClaimState.RELEASING}
)


def lends(pool: Pool) -> bool:
    """Return True if lent core of this pool can be used by others, and is back at once."""
    # Only turns give it back to its owner at once.
    return pool.sharing_policy in LENDING_POLICIES and pool.backend == BackEnd.TURNS


def lend(claim: Claim, core: int) -> None:
    """Lend `core` points on each GPU from now on, under the claim's lock; the caller saves the claim.

    GPUs in key order.
    """
    for assignment in _live(claim):
        if more := core - assignment.lent_core:
            Assignment.objects.filter(pk=assignment.pk).update(lent_core=core, version=F("version") + 1)
            capacity.lend(gpu_id=assignment.gpu_id, core=more)
    claim.lent_core = core


def settle(claim: Claim, state: str) -> None:
    """End the lending or borrowing that a claim in this state no longer has; the caller saves the claim."""
    if claim.lent_core and state not in LENDING_STATES:
        lend(claim, 0)
    if claim.borrowed_core and state not in ON_A_GPU:
        give_back(claim)


def give_back(claim: Claim) -> None:
    """Give back all borrowed core, under the claim's lock; the caller saves the claim. GPUs in key order."""
    for assignment in claim.assignments.filter(borrowed_core__gt=0).order_by("gpu_id"):
        Assignment.objects.filter(pk=assignment.pk).update(borrowed_core=0, version=F("version") + 1)
        capacity.return_borrowed(gpu_id=assignment.gpu_id, core=assignment.borrowed_core)
    claim.borrowed_core = 0


def borrow_other(claim: Claim, core: int) -> bool:
    """Borrow `core` points on each GPU instead, for a resized claim; return False if a GPU does not have them."""
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
