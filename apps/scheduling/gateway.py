"""This app's side of the agents' gateway."""

import logging
import time
from datetime import UTC, datetime
from typing import Any

import msgspec
from django.db import transaction

from agent import wire
from apps.nodes.models import Node
from apps.nodes.services import samples
from apps.nodes.services.conditions import take_conditions
from apps.quotas.principals import Principal
from apps.quotas.services import audit
from apps.scheduling import events
from apps.scheduling.models import Assignment, AssignmentState, Claim
from apps.scheduling.services.claims.desired import desired_state
from apps.scheduling.services.claims.health import tell_owners
from apps.scheduling.services.claims.observation import take_observed
from apps.scheduling.services.rebalancing import waking
from gpucloud import counters

logger = logging.getLogger(__name__)


class Gateway:
    """Implements `apps.nodes.gateway.registry.Claims`."""

    def desired(self, node: Node) -> wire.Desired:
        """The node's whole wanted state."""
        return desired_state(node)

    def observed(self, node: Node, frame: wire.Observed) -> None:
        """Take what is in force."""
        take_observed(node=node, frame=frame)

    def usage(self, node: Node, frame: wire.Usage) -> None:
        """Store the frame, then show it to those who watch the node or one of its claims."""
        live = Assignment.objects.filter(gpu__node=node).exclude(state=AssignmentState.RELEASED)
        rows: dict[str, dict[str, Any]] = {
            str(row["uid"]): dict(row) for row in live.values("uid", "claim__uid", "gpu__uuid", "lent_core")
        }
        samples.store(node=node, usage=frame, known=set(rows))
        counters.TELEMETRY_FRAMES.add()
        counters.TELEMETRY_SECONDS.observe(max(0.0, time.time() - frame.at))
        known = [item for item in frame.assignments if item.uid in rows]
        # Of several GPUs of a claim, the one on which it did most.
        rising = sorted(known, key=lambda item: item.core_percent)
        if lenders := {str(rows[item.uid]["claim__uid"]): item for item in rising if rows[item.uid]["lent_core"]}:
            waking.wake(lenders, at=datetime.fromtimestamp(frame.at, tz=UTC))
        shown = [_shown(item, rows[item.uid]) for item in known]
        gpus = [msgspec.to_builtins(gpu) for gpu in frame.gpus]
        # Sequence numbers are the node's own: a page that watches a claim on two nodes counts them apart.
        base = {"type": "live.usage", "node": node.name, "seq": frame.seq, "at": frame.at}
        events.send_to_group(events.node_group(node.uid), {**base, "gpus": gpus, "assignments": shown})
        for claim_uid in {str(row["claim__uid"]) for row in rows.values()}:
            mine = [item for item in shown if item["claim"] == claim_uid]
            if mine:
                events.send_to_group(events.claim_group(claim_uid), {**base, "assignments": mine})

    @transaction.atomic
    def conditions(self, node: Node, frame: wire.Conditions) -> None:
        """Keep them, and tell the owners of claims on GPUs that became sick or well."""
        tell_owners(node=node, changes=take_conditions(node=node, frame=frame))

    def event(self, node: Node, frame: wire.Event) -> None:
        """Keep it where operators look; what one of a claim's processes did, its tenant's admins see too."""
        logger.info("node %s: %s: %s", node.name, frame.code, frame.detail)
        claim = _claim_of(frame.process, node)
        audit.record(
            principal=Principal(name=f"agent:{node.name}"),
            action=f"agent.{frame.code}"[:60],
            object_type="node",
            object_id=node.name,
            tenant=claim.tenant if claim is not None else None,
            after={
                "detail": frame.detail,
                "assignment": frame.assignment_uid,
                "at": frame.at,
                "process": msgspec.to_builtins(frame.process),
            },
        )


def _claim_of(process: wire.GpuProcess | None, node: Node) -> Claim | None:
    """Whose process it is; a node is believed of claims that it carries only."""
    if process is None or process.claim_uid is None:
        return None
    claims = Claim.objects.filter(uid=process.claim_uid, assignments__gpu__node=node)
    return claims.select_related("tenant").first()


def _shown(item: wire.AssignmentUsage, row: dict[str, Any]) -> dict[str, Any]:
    return {**msgspec.to_builtins(item), "claim": str(row["claim__uid"]), "gpu": row["gpu__uuid"]}
