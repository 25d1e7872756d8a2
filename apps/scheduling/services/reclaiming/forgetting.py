"""Forgetting of lost nodes: an operator states that the machine will not come back with what it carried."""

from django.db import transaction
from django.db.models import Q, QuerySet

from apps.nodes.models import Node
from apps.nodes.models.node import FRESH
from apps.quotas.principals import Principal
from apps.quotas.services import audit, charging
from apps.scheduling import events
from apps.scheduling.models import Assignment, Claim, ClaimState, ReservationState
from apps.scheduling.models.reservation import Ending
from apps.scheduling.providers import bookings, node_moves
from apps.scheduling.services.charging import borrowing, reservation_charges, states
from apps.scheduling.services.claims.lifecycle import locked
from apps.scheduling.services.reclaiming.failover import leave_gpus
from gpucloud.api import etags
from gpucloud.errors import Conflict


class NodeOnline(Conflict, code="node-online", title="The node is not lost"):
    """The node is online; the claims on it can be released."""


@transaction.atomic
def forget_node(*, principal: Principal, node: Node, versions: etags.Versions = None) -> Node:
    """Give back everything that a lost node holds, and shut its agent out until it is enrolled again.

    Only a silent node can be forgotten: processes on it may still be running, and the operator answers for that. Raises
    NodeOnline, PreconditionFailed.
    """
    principal.require_operator()
    _refuse_online(node)
    live = Assignment.objects.filter(gpu__node=node).live()
    # The order of locks: all claims, their reservations, all quotas, all GPUs, the node.
    claims = _lock_claims(live)
    reservations = reservation_charges.lock_of(claims, Q(state=ReservationState.ACTIVE, gpus__node=node))
    ending = [row for row in reservations if row.state == ReservationState.ACTIVE]
    charging.lock_quotas_of(*{claim.tenant for claim in claims}, *{row.tenant for row in ending})
    node_moves.get().leave_node(node)
    claims = _lock_claims(live.filter(claim__in=claims))
    for row in sorted(ending, key=lambda row: row.tenant_id):
        if row.gpus.filter(node=node).exists():
            bookings.get().release_reservation(principal=principal, reservation=row, ending=Ending.FORGOTTEN)
    for claim in sorted(claims, key=lambda claim: claim.tenant_id):
        states.charge_to(claim, dict.fromkeys(claim.charged, 0), principal=principal)
    for claim in claims:
        borrowing.settle(claim, ClaimState.RELEASED)
    leave_gpus(live, reason="its node was forgotten")
    for claim in claims:
        states.move(claim, ClaimState.RELEASED, **states.NOT_PREEMPTED)
    node = etags.lock(node, versions)
    _refuse_online(node)  # it may have come back meanwhile; then all of this is rolled back
    node.gpus.update(present=False)
    node.change(key_digest=None, enrolment_digest=None, enrolled_at=None, last_seen_at=None)
    if live.exclude(claim__in=claims).exists():
        raise Conflict(f"A claim was just placed on {node.name}: try again.")
    events.node_forgotten_on_commit(node.pk)
    audit.record(principal, "node.forget", node)
    return node


def _lock_claims(live: QuerySet[Assignment]) -> list[Claim]:
    return [locked(claim) for claim in Claim.objects.filter(assignments__in=live).distinct().order_by("pk")]


def _refuse_online(node: Node) -> None:
    if node.online:
        raise NodeOnline(
            f"Node {node.name} is online or was until {FRESH.seconds} seconds ago. If it works, cordon it and release "
            f"its claims. If its agent is uninstalled, try again in {FRESH.seconds} seconds.",
            node=node.name,
        )
