"""Consolidation: the moves of claims that would free GPUs of a pool.

Proposals only: `apps.suspension.consolidating` orders those that an operator accepts.
"""

from dataclasses import dataclass
from datetime import timedelta

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from apps.nodes.models import Sample
from apps.quotas.models import Pool
from apps.quotas.principals import Principal
from apps.quotas.services import audit
from apps.scheduling.core import calendar
from apps.scheduling.core.consolidation import MoveBounds, PlacedClaim, Plan, free_gpus, make_room
from apps.scheduling.core.fleet import Fleet
from apps.scheduling.models import Assignment, Claim, ClaimState
from apps.scheduling.providers import lending_forecasts
from apps.scheduling.services.claims.lifecycle import request_of
from apps.scheduling.services.fleet.devices import read_fleet, read_nodes
from apps.scheduling.services.fleet.reserved import microseconds, read_reserved

MIB = 1 << 20
# A sample comes every second: if there is none of this period, the whole limit counts as used.
LATELY = timedelta(minutes=1)
# The claims at the queue's head, each by itself: a plan for many at once would be a rebuilding.
MOST_WAITING = 10


@dataclass(frozen=True, slots=True)
class ConsolidationPlan:
    """A plan, and the waiting claim that it serves; None: no particular one."""

    claim: Claim | None
    plan: Plan
    claims: dict[str, Claim]

    @property
    def explanation(self) -> str:
        """The plan in words and numbers."""
        moves, frees = len(self.plan.moves), len(self.plan.frees)
        what = f"{moves} claim{'s' * (moves > 1)} with {self.plan.cost_mib} MiB in use would move"
        left = f"{frees} GPU{'s' * (frees != 1)} would be wholly free"
        if self.claim is None:
            return f"{what}: {left}."
        return f"{what}: {self.claim.name} of {self.claim.tenant.slug} could start, and {left} for it."


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The plans found, and the reason if there are none."""

    plans: list[ConsolidationPlan]
    why: str | None


@transaction.atomic
def proposals(*, principal: Principal, pool: Pool, bounds: MoveBounds) -> SearchResult:
    """Return the moves that would let claims of the queue's head start, each alone, or that would free whole GPUs.

    The request is recorded in the audit log. Raises RoleMissing.
    """
    principal.require_operator()
    sitting, claims = _sitting(pool)
    # Instances are not moved, and no move of another claim makes room for one.
    waiting = Claim.objects.filter(pool=pool, state=ClaimState.QUEUED, reservation=None, profile=None)
    waiting = waiting.select_related("tenant", "pool")
    fleet = Fleet(read_fleet(pool), read_nodes(pool), policy=pool.placement_policy)
    head = list(waiting.order_by("-priority", "pk")[:MOST_WAITING])
    now = timezone.now()
    held = calendar.withheld(read_reserved(pool, now=now).holds, microseconds(now), calendar.FOREVER)
    plans = [(claim, make_room(fleet, sitting, request_of(claim), bounds, held=held)) for claim in head]
    found = [ConsolidationPlan(claim, plan, claims) for claim, plan in plans if plan]
    if plan := free_gpus(fleet, sitting, bounds, held=held):
        found.append(ConsolidationPlan(None, plan, claims))
    result = SearchResult(found, None if found else _nothing(pool, len(sitting), len(head), bounds))
    after = {"most_moves": bounds.most_moves, "most_memory_mib": bounds.most_memory_mib, "plans": len(found)}
    audit.record(principal, "pool.consolidation", pool, after={**after, "why": result.why})
    return result


def _nothing(pool: Pool, could_move: int, waiting: int, bounds: MoveBounds) -> str:
    """Return why no moves are proposed."""
    if not could_move:
        return (
            f"No claim of pool {pool.name} could be moved: only active ones can that neither borrow core nor run in a "
            "reservation, and are no pod's."
        )
    whom = "nothing waits" if not waiting else f"none of the {waiting} at the queue's head would start"
    return (
        f"{could_move} claims could be moved, but no {bounds.most_moves} moves of at most {bounds.most_memory_mib} MiB "
        f"leave a GPU wholly free, and {whom} after any."
    )


def _sitting(pool: Pool) -> tuple[list[PlacedClaim], dict[str, Claim]]:
    """Return the active claims that could move: not those that borrow, are in a reservation or a MIG
    instance, or end with a pod."""
    rows = Claim.objects.filter(pool=pool, state=ClaimState.ACTIVE, borrowed_core=0, reservation=None, profile=None)
    rows = rows.filter(Q(pod__isnull=True) | ~Q(pod__has_key="uid"))
    rows = rows.select_related("tenant", "pool")
    claims = {str(claim.uid): claim for claim in rows}
    live = Assignment.objects.filter(claim__in=rows).exclude(state="released").select_related("gpu", "claim")
    gpus: dict[str, list[Assignment]] = {}
    for item in live.order_by("claim", "gpu__index", "gpu__uuid"):
        gpus.setdefault(str(item.claim.uid), []).append(item)
    used = _in_use([item for items in gpus.values() for item in items])
    foretold = lending_forecasts.get().read_forecasts(pool, now=timezone.now())
    sitting = [
        PlacedClaim(
            uid,
            request_of(claims[uid]),
            tuple(item.gpu.uuid for item in items),
            max(used.get(item.pk, item.memory_mib) for item in items),
            foretold[uid].expected_percent if uid in foretold else 100.0,
        )
        for uid, items in gpus.items()
    ]
    return sitting, claims


def _in_use(live: list[Assignment]) -> dict[int, int]:
    """Return MiB in use by the latest sample, by the assignment's key; assignments without one are left out."""
    rows = {item.uid: item for item in live}
    nodes = {item.gpu.node_id for item in live}
    since = timezone.now() - LATELY
    samples = Sample.objects.filter(gpu=None, assignment_uid__in=rows, node_id__in=nodes, at__gte=since)
    latest = samples.order_by("assignment_uid", "-at").distinct("assignment_uid")
    return {rows[uid].pk: -(-used // MIB) for uid, used in latest.values_list("assignment_uid", "memory_bytes") if uid}
