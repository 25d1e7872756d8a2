"""Proposals to place MIG claims again, where that makes room for an instance that has no place.

Level-triggered, as packing is: each run plans anew, proposes the moves, and withdraws proposals that it no longer
finds. Nothing is moved without consent, whatever the pool's `rebalance_mode`: the programs of the claim are stopped.
One plan at a time for each pool: two might count on the same room.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import Q
from django.utils import timezone

from apps.instances.planning import Instance, Move, find_moves
from apps.quotas.models import Pool, RebalanceMode
from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.mig import core_percent
from apps.scheduling.core.values import Placed, Request
from apps.scheduling.models import Assignment, AssignmentState, Claim, ClaimState, Proposal, ProposalState
from apps.scheduling.models.proposal import ProposalKind
from apps.scheduling.services.claims.lifecycle import request_of
from apps.scheduling.services.failures import each
from apps.scheduling.services.fleet.devices import read_fleet, read_nodes
from apps.scheduling.services.rebalancing.observing import bounds_of
from apps.scheduling.services.rebalancing.proposals import expire, take
from gpucloud.locks import exclusive

# The policy that a proposal names.
POLICY = "instances"
# The claims at the queue's head, each by itself.
MOST_WAITING = 10


class Room(NamedTuple):
    """A plan: its moves, the profile that it makes room for, and whether a claim waits for that."""

    moves: tuple[Move, ...]
    profile: str
    is_waited_for: bool


def drive() -> int:
    """Run in every pool that is rebalanced; return the number of changes. A second run at a time does nothing."""
    with exclusive("instances") as free:
        if not free:
            return 0
        divided = Pool.objects.filter(nodes__gpus__mig__isnull=False, nodes__gpus__present=True).distinct()
        return each(list(divided.exclude(rebalance_mode=RebalanceMode.OFF).order_by("pk")), run)


def run(pool: Pool, *, now: datetime | None = None) -> int:
    """Plan for one pool, withdraw what is no longer found, and propose the rest; return the number of changes."""
    now = now or timezone.now()
    rows = {str(row.claim.uid): row for row in _movable(pool, now)}
    room = _find_room(pool, rows)
    # 1. Withdraw what is no longer found.
    found = {(rows[move.claim].claim_id, move.to_gpu, move.to_start) for move in room.moves} if room else set()
    open_ones = Proposal.objects.filter(pool=pool, kind=ProposalKind.REQUEUE, state=ProposalState.PROPOSED)
    gone = [row for row in open_ones.order_by("pk") if (row.claim_id, *_place_of(row)) not in found]
    changed = each(gone, expire)
    # 2. Propose.
    if room is None:
        return changed
    for move in room.moves:
        proposal = _proposal(pool, rows[move.claim], move, room)
        changed += take(proposal) is proposal
    return changed


def _place_of(row: Proposal) -> tuple[str, int]:
    return row.after["gpus"][0], row.after["mig_start"]


def _movable(pool: Pool, now: datetime) -> Iterator[Assignment]:
    """Yield the assignments of active claims with an instance that may be placed again, and do not rest."""
    rested = Q(claim__rebalanced_at=None) | Q(
        claim__rebalanced_at__lte=now - timedelta(seconds=bounds_of(pool).cool_down_seconds)
    )
    rows = Assignment.objects.live().filter(rested, gpu__node__pool=pool, mig_start__isnull=False)
    rows = rows.filter(
        claim__state=ClaimState.ACTIVE, claim__pod__isnull=True, claim__preempt_at=None, claim__idle_release_at=None
    )
    yield from rows.exclude(state=AssignmentState.RELEASING).select_related("claim__tenant", "gpu__node").order_by("pk")


def _find_room(pool: Pool, rows: dict[str, Assignment]) -> Room | None:
    """Return the plan for the first waiting claim that has one; while none waits, for the largest profile."""
    if not rows:
        return None
    fleet = Fleet(read_fleet(pool), read_nodes(pool), policy=pool.placement_policy)
    instances = [
        Instance(uid, row.gpu.uuid, replace(request_of(row.claim), start=row.mig_start or 0))
        for uid, row in rows.items()
    ]
    # Those that wait for quota would not start.
    waiting = Claim.objects.filter(pool=pool, state=ClaimState.QUEUED, profile__isnull=False, instance_of=None)
    waiting = waiting.filter(charged_instances__gt=0).order_by("-priority", "pk")
    requests = [request_of(claim) for claim in waiting[:MOST_WAITING]]
    for request in requests or _unplaceable(fleet):
        if moves := find_moves(fleet, instances, request):
            return Room(moves, request.profile or "", bool(requests))
    return None


def _unplaceable(fleet: Fleet) -> list[Request]:
    """Return a request for each profile of the pool that has no place now, the largest first."""
    kinds = {
        profile.name: (profile.memory_mib, core_percent(profile, gpu.mig.profiles))
        for gpu in fleet.gpus()
        if gpu.mig is not None
        for profile in gpu.mig.profiles
        if profile.starts
    }
    requests = [
        Request(1, core, memory_mib, profile=name)
        for name, (memory_mib, core) in sorted(kinds.items(), key=lambda item: (item[1], item[0]), reverse=True)
    ]
    return [request for request in requests if not isinstance(fleet.place(request), Placed)]


def _proposal(pool: Pool, row: Assignment, move: Move, room: Room) -> Proposal:
    return Proposal(
        pool=pool,
        claim=row.claim,
        kind=ProposalKind.REQUEUE,
        policy=POLICY,
        before={"gpus": [row.gpu.uuid], "mig_start": row.mig_start},
        after={"gpus": [move.to_gpu], "mig_start": move.to_start},
        explanation=_explain(pool, row, room),
        numbers={"claims_moved": float(len(room.moves)), "memory_slices": float(row.mig_size or 0)},
    )


def _explain(pool: Pool, row: Assignment, room: Room) -> str:
    """Return the reason in words; they name no other claim, which may be another tenant's."""
    others = len(room.moves) - 1
    inside = Claim.objects.live().filter(instance_of=row.claim.uid).count()
    words = (
        f"No GPU of pool {pool.name} has a place for an instance of {room.profile}, and "
        f"{'a claim waits for one' if room.is_waited_for else 'one could have it'}. If this claim is released and "
        "placed again, there is a place beside it. Its programs are stopped, and it keeps its name, quota and place "
        "in the queue."
    )
    if inside:
        words += f" {inside} claim{'s' * (inside > 1)} in its instance would go with it."
    if others:
        words += f" {others} other claim{'s' * (others > 1)} must be placed again too: each has a proposal of its own."
    return words
