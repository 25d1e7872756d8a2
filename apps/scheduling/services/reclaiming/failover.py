"""Failover of claims on lost nodes, as their pool's policy says: keep waiting, requeue, or release after a time.

Level-triggered: each run looks at the nodes that have been silent for longer than their pool allows. The claims of a
node are moved in a transaction that locks the node and checks its silence again; a heartbeat or a hello of the agent
writes the same row, so it comes before, and nothing is moved, or after, and the agent finds other desired state.

The desired state of a node that comes back no longer has what was moved: its agent ends those programs. Until it has
reported that (`take_return`), the node takes no new claims, because the old programs may still use its GPUs.

Claims of pods end with their pods, and claims in reservations wait for the reserved room, so both stay.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from apps.nodes.models import Node
from apps.nodes.services import capacity
from apps.quotas.models import EventKind
from apps.quotas.models.pool import FailoverPolicy
from apps.quotas.services import charging
from apps.scheduling.models import Assignment, AssignmentState, Claim, ClaimState
from apps.scheduling.models.claim import PLACED
from apps.scheduling.providers import instance_seats, node_moves
from apps.scheduling.services.charging import reservation_charges, states
from apps.scheduling.services.claims.lifecycle import end_assignments, locked
from apps.scheduling.services.failures import each

HOLDINGS = ("held_core", "held_memory_mib", "held_host_memory_mib", "taken_core", "taken_memory_mib")
ENDED = "its node was lost, and the claim was moved away"
MOVABLE = Q(state__in=(*PLACED, ClaimState.RELEASING), pod__isnull=True, reservation__isnull=True)


def drive() -> int:
    """Fail over the claims of nodes that are silent for too long; return the number of nodes. May run twice."""
    now = timezone.now()
    nodes = Node.objects.exclude(pool__failover_policy=FailoverPolicy.WAIT).select_related("pool").order_by("pk")
    due = [node for node in nodes.filter(last_seen_at__lt=now) if is_due(node, now)]
    # What has left a node already is not lost with it.
    return each(due, node_moves.get().leave_home) + each(due, fail_over)


def is_due(node: Node, now: datetime) -> bool:
    """Return True if the node has been silent for longer than its pool waits."""
    pool, seen = node.pool, node.last_seen_at
    if pool.failover_policy == FailoverPolicy.WAIT or seen is None:
        return False
    return now - seen >= timedelta(seconds=pool.failover_after_seconds)


@transaction.atomic
def fail_over(seen: Node) -> bool:
    """Requeue or release the node's claims, if it is still silent; return True if there were any."""
    live = Assignment.objects.filter(gpu__node=seen, counterpart=None).live()
    here = Claim.objects.filter(MOVABLE, pk__in=live.values("claim"))
    keys = list(here.order_by("pk").values_list("pk", flat=True))
    if not keys:
        return False
    requeue = seen.pool.failover_policy == FailoverPolicy.REQUEUE
    mates = _group_mates(keys) if requeue else set()
    # The order of locks: all claims, their reservations, all quotas, all GPUs, the node.
    there = [locked(Claim(pk=key)) for key in sorted(mates.union(keys))]
    claims = [claim for claim in there if claim.pk not in mates and claim.state in (*PLACED, ClaimState.RELEASING)]
    reservation_charges.lock_of(claims)
    charging.lock_quotas_of(*{claim.tenant for claim in claims})
    for claim in sorted(claims, key=lambda claim: claim.tenant_id):
        states.charge_to(claim, dict.fromkeys(claim.charged, 0))
    leave_gpus(Assignment.objects.filter(claim__in=claims).live(), reason=ENDED)
    for claim in claims:
        _move(claim, seen, requeue=requeue)
    node = _locked_if_silent(seen)
    # A claim that joined one of the groups meanwhile is not locked: the next run includes it.
    if node is None or (requeue and _group_mates(keys) - mates):
        transaction.set_rollback(True)
        return False
    frame = node.frame + 1
    node.change(frame=frame, returning_frame=frame)
    _requeue_mates(claim for claim in there if claim.pk in mates and claim.state in PLACED)
    return True


def _group_mates(keys: Collection[int]) -> set[int]:
    """Return the keys of the other placed claims in the groups of these claims."""
    among = Q(pk=None)
    groups = Claim.objects.filter(pk__in=keys, group__isnull=False).order_by()
    for tenant, pool, group in groups.values_list("tenant", "pool", "group").distinct():
        among |= Q(tenant=tenant, pool=pool, group=group)
    rows = Claim.objects.filter(among, state__in=PLACED, pod__isnull=True).exclude(pk__in=keys)
    return set(rows.order_by().values_list("pk", flat=True))


def _locked_if_silent(seen: Node) -> Node | None:
    """Lock the node; return None if its agent was heard meanwhile, or its pool's policy is another one now."""
    node = Node.objects.select_for_update(of=("self",)).select_related("pool").get(pk=seen.pk)
    same = node.pool.failover_policy == seen.pool.failover_policy
    return node if same and is_due(node, timezone.now()) else None


def leave_gpus(live: QuerySet[Assignment], *, reason: str) -> None:
    """Release these assignments, whose node will not confirm it, and free what they hold of their GPUs."""
    saved: Counter[int] = Counter()
    rows = list(live.select_related("gpu", "claim").order_by("gpu_id", "pk"))
    for key, core, memory_mib in sorted(
        (key, item.held_core, item.held_memory_mib) for item in rows for key in item.gpus_held
    ):
        capacity.give_back(gpu_id=key, core=core, memory_mib=memory_mib)
    for item in rows:
        saved[item.gpu.node_id] += item.held_host_memory_mib
        taken = {"core": item.taken_core, "memory_mib": item.taken_memory_mib}
        nothing = dict.fromkeys(HOLDINGS, 0)
        item.change(state=AssignmentState.RELEASED, reason=reason, other_gpu=None, carry=None, **nothing)
        # After that: what a claim with an instance has of it ends with the instance.
        if taken["memory_mib"]:
            instance_seats.get().give_back(item.claim, **taken)
    for node_id, memory_mib in sorted(saved.items()):
        if memory_mib:
            capacity.give_back_host_memory(node_id=node_id, memory_mib=memory_mib)


def _move(claim: Claim, node: Node, *, requeue: bool) -> None:
    """Requeue or release the claim; one that was being released is released, one being preempted is requeued."""
    if claim.state == ClaimState.RELEASING:
        requeue = claim.preempt_at is not None
    words = "requeued" if requeue else "released"
    why = f"Node {node.name} is unreachable since {node.last_seen_at:%Y-%m-%d %H:%M:%S} UTC: {words}"
    states.note(claim, "failover", why=why, node=node.name, state=claim.state)
    reasons = [{"code": "node-lost", "gpus": 0, "detail": why}]
    values: dict[str, Any] = {"reasons": reasons, **states.NOT_PREEMPTED}
    if requeue:
        states.tell_of(claim, EventKind.CLAIM_PREEMPTED, why=why)
        states.move(claim, ClaimState.QUEUED, assigned_at=None, **values)
    else:
        states.move(claim, ClaimState.RELEASED, **values)


def _requeue_mates(mates: Iterable[Claim]) -> None:
    """Requeue the rest of the lost claims' groups: one member alone would never be placed again."""
    for claim in mates:
        detail = "A node of its group was lost: the claim is queued again with its group"
        reasons = [{"code": "node-lost", "gpus": 0, "detail": detail}]
        end_assignments(claim, preempt_at=timezone.now(), reasons=reasons)
