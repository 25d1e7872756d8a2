"""Drift: changes made on a node behind its agent's back, and an operator's order to repair them.

The order is a level, not a message: it stands on the node and in its desired state until the agent reports nothing more
that it could repair. So it survives any process that is killed and any message that is lost, and may be given twice.
"""

from django.db import transaction
from django.db.models import F
from django.utils import timezone
from msgspec import UNSET, to_builtins

from agent import wire
from apps.nodes.models import Node
from apps.quotas.principals import Principal
from apps.quotas.services import audit
from apps.scheduling.services.claims.lifecycle import raise_frames
from gpucloud.api import etags
from gpucloud.errors import Conflict


class NothingToRepair(Conflict, code="nothing-to-repair", title="Nothing to repair"):
    """No drift of the node waits for a repair."""


@transaction.atomic
def repair_node(*, principal: Principal, node: Node, versions: etags.Versions = None) -> Node:
    """Order the agent to repair what it can. Raises NothingToRepair, PreconditionFailed."""
    principal.require_operator()
    node = etags.lock(node, versions)
    waiting = [one for one in node.drifts if one["mendable"]]
    if not waiting:
        raise NothingToRepair(
            f"No drift of node {node.name} waits for a repair: what is not mendable must be fixed on the machine.",
            drifts=len(node.drifts),
        )
    node.change(repair_asked_at=timezone.now())
    raise_frames({node.pk})
    kinds = sorted({one["kind"] for one in waiting})
    audit.record(principal, "node.repair", node, after={"drifts": kinds})
    return node


def take_drifts(*, node: Node, frame: wire.Observed) -> None:
    """Store the drift that the agent reports; end an operator's order if nothing more waits for a repair.

    `node` is the connection's own object: it has the drift reported before, so that frames without news cost nothing.
    """
    told = [] if frame.drifts is UNSET else to_builtins(frame.drifts)
    if told == node.drifts:
        return
    with transaction.atomic():
        Node.objects.filter(pk=node.pk).update(drifts=told, version=F("version") + 1, updated_at=timezone.now())
        done = not any(one["mendable"] for one in told)
        asked = Node.objects.filter(pk=node.pk, repair_asked_at__isnull=False)
        if done and asked.update(repair_asked_at=None):
            raise_frames({node.pk})
    node.drifts = told
