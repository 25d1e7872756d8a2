"""Celery tasks of this app. Each takes ids, may run twice, and changes nothing that a service does not."""

import logging
from collections.abc import Callable
from datetime import timedelta

from celery import shared_task
from django.db.models import DurationField, ExpressionWrapper, F, Value
from django.utils import timezone

from apps.nodes.models import Node
from apps.nodes.models.node import FRESH
from apps.quotas.models import Pool, RebalanceMode
from apps.quotas.principals import SYSTEM
from apps.scheduling import events
from apps.scheduling.models import Assignment, AssignmentState, Claim, FleetSnapshot, Proposal, Round
from apps.scheduling.models.claim import PLACED
from apps.scheduling.services.charging import budgets
from apps.scheduling.services.claims import absences
from apps.scheduling.services.claims.leases import release_lapsed
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.failures import each
from apps.scheduling.services.rebalancing import idleness
from apps.scheduling.services.rebalancing.guarantees import own_what_is_free
from apps.scheduling.services.rebalancing.proposals import REBALANCER, end_lending, expire_proposals, rebalance
from apps.scheduling.services.reclaiming import draining, failover, preemption

logger = logging.getLogger(__name__)

# On an idle machine a push is in force within 100 ms; one that takes 50 times as long was lost.
UNOBSERVED = timedelta(seconds=5)
CHANGING = (AssignmentState.RELEASING, AssignmentState.SUSPENDING, AssignmentState.RESUMING)


def repair_pushes() -> int:
    """Push again to connected nodes whatever is not observed after 5 s; return the number of nodes."""
    now = timezone.now()
    unobserved = Assignment.objects.live().filter(
        updated_at__lt=now - UNOBSERVED, observed_generation__lt=F("generation")
    )
    # The last report of a change of state may be lost too: its generation is then observed, its state is not.
    changing = Assignment.objects.filter(state__in=CHANGING, updated_at__lt=now - UNOBSERVED)
    waiting = (unobserved | changing).filter(gpu__node__last_seen_at__gte=now - FRESH)
    # A change of a pool's sharing changes no assignment: only the frame shows it.
    behind = Node.objects.filter(
        observed_frame__lt=F("frame"), last_seen_at__gte=now - FRESH, pool__updated_at__lt=now - UNOBSERVED
    ).exclude(gpus__assignments__updated_at__gte=now - UNOBSERVED)
    node_ids = sorted({*waiting.values_list("gpu__node_id", flat=True), *behind.values_list("pk", flat=True)})
    if node_ids:
        events.push(node_ids, why="repair")
    return len(node_ids)


# An old round no longer explains the present.
ROUNDS_KEPT = timedelta(days=7)


@shared_task
def drop_old_rounds() -> int:
    """Drop rounds after a week, but for those that a younger one is replayed from; return the number of rows."""
    since = timezone.now() - ROUNDS_KEPT
    younger = Round.objects.filter(at__gte=since).values("base")
    return FleetSnapshot.objects.filter(at__lt=since).exclude(pk__in=younger).delete()[0]


def expire_claims() -> int:
    """Release claims whose time limit has passed; return the number of claims."""
    second = ExpressionWrapper(F("time_limit_seconds") * Value(timedelta(seconds=1)), output_field=DurationField())
    over = Claim.objects.filter(
        state__in=PLACED, time_limit_seconds__isnull=False, assigned_at__lt=timezone.now() - second
    )
    return each(over.select_related("tenant"), _expire)


def _expire(claim: Claim) -> bool:
    release_claim(principal=SYSTEM, claim=claim, why=f"its time limit of {claim.time_limit_seconds} s has passed")
    return True


# The audit log has all changes and reasons for good; the list is for the present.
PROPOSALS_KEPT = timedelta(days=30)


@shared_task
def rebalance_pools() -> int:
    """Start a run for every pool that is rebalanced, each a task of its own; return the number of pools."""
    expire_proposals()
    end_lending()
    own_what_is_free()
    pools = Pool.objects.exclude(rebalance_mode=RebalanceMode.OFF).values_list("pk", flat=True)
    for pool_id in pools:
        rebalance_pool.delay(pool_id)
    return len(pools)


@shared_task
def rebalance_pool(pool_id: int) -> int:
    """Run the rebalancer over a pool; return the number of changes.

    Two runs at once are one: `rebalance` takes a lock.
    """
    pool = Pool.objects.exclude(rebalance_mode=RebalanceMode.OFF).filter(pk=pool_id).first()
    return len(rebalance(principal=REBALANCER, pool=pool).proposals) if pool else 0


@shared_task
def drop_old_proposals() -> int:
    """Drop decided proposals after a month; return the number of rows."""
    old = Proposal.objects.filter(decided_at__lt=timezone.now() - PROPOSALS_KEPT)
    return old.delete()[0]


def drive_preemption() -> int:
    """Drain nodes, and give tenants back what they lent and need now.

    Return the number of claims that got notice, were spared or were preempted.
    """
    try:
        emptied = draining.drive()
    finally:
        # An error of draining would come again in each run.
        made_room = preemption.drive()
    return emptied + made_room


def watch_nodes() -> int:
    """Announce nodes that are lost or returned, and fail over claims of lost ones; return the number of nodes."""
    try:
        told = absences.watch_nodes()
    finally:
        # An error of the announcements would come again in each run.
        moved = failover.drive()
    return told + moved


# The services are driven together: a message to a worker costs more than most of them find to do.
@shared_task
def drive_claims() -> int:
    """Push again, make room; return the number of changes.

    Preemption comes last: another worker does the others' next run while it takes long.
    """
    return each((repair_pushes, drive_preemption), _call)


@shared_task
def watch_claims() -> int:
    """Watch nodes and idle claims, end claims by their time limits and leases; return the number of changes."""
    return each((watch_nodes, release_lapsed, idleness.drive, expire_claims), _call)


def _call(service: Callable[[], int]) -> int:
    return service()


@shared_task
def watch_budgets() -> int:
    """Warn once for each threshold and period of a budget; return the number of warnings."""
    return budgets.watch_budgets()
