"""The fast path of waking: a lending claim that is measured to work gets its core back in the books at once.

It has its compute already: the node's arbiter gave that back in the round in which it woke. This stops placements on
what is its own before the next run of the rebalancer.
"""

from collections.abc import Mapping
from datetime import datetime

from django.db import transaction

from agent import wire
from apps.quotas.models import RebalancePolicy
from apps.rebalancing.values import is_awake
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.lifecycle import locked
from apps.scheduling.services.rebalancing.observing import bounds_of
from apps.scheduling.services.rebalancing.proposals import record_lent
from gpucloud.errors import GpucloudError


def wake(lenders: Mapping[str, wire.AssignmentUsage], *, at: datetime) -> int:
    """Give back to the lending claims, by uid, that this measurement shows awake; return the number of claims.

    An agent that was away sends what it stored: a measurement from before a claim lent says nothing about it.
    """
    claims = Claim.objects.filter(uid__in=lenders, lent_core__gt=0, rebalanced_at__lt=at)
    claims = claims.select_related("tenant", "pool").order_by("pk")
    return sum(_wake(claim, lenders[str(claim.uid)]) for claim in claims)


# Policies that lend a part of what a working claim is guaranteed: it wakes when it needs more than the rest.
BY_NEED = frozenset({RebalancePolicy.PERCENTILE, RebalancePolicy.FORECAST})


def _fits_in_the_rest(claim: Claim, used: wire.AssignmentUsage) -> bool:
    """Return True if the claim works within what it has not lent, in a pool that lends parts."""
    bounds = bounds_of(claim.pool)
    waits = used.throttled_percent >= bounds.throttled_percent
    rest = claim.core_request - claim.lent_core
    return claim.pool.rebalance_policy in BY_NEED and used.core_percent <= rest and not waits


@transaction.atomic
def _wake(seen: Claim, used: wire.AssignmentUsage) -> bool:
    """Give back and record it; return True if this measurement did so: of several at once one does."""
    if not is_awake(used.core_percent, used.throttled_percent, bounds_of(seen.pool)):
        return False
    claim = locked(seen)
    lent = claim.lent_core
    if _fits_in_the_rest(claim, used):
        return False
    if not lent or claim.rebalanced_at != seen.rebalanced_at:
        return False
    why = (
        f"It used {used.core_percent:.0f} % of a GPU within a second and waited {used.throttled_percent:.0f} % of it: "
        f"the {lent} points of core that were lent are its own again."
    )
    numbers = {"core_percent": used.core_percent, "throttled_percent": used.throttled_percent}
    try:
        record_lent(claim, 0, policy="waking", why=why, numbers=numbers)
    except GpucloudError:
        return False
    return True
