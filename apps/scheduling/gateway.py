"""The claims' part of the agents' gateway."""

import logging
import time
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from django.db import transaction

from agent import wire
from apps.nodes.models import Node
from apps.nodes.services import agent_rows
from apps.nodes.services.conditions import take_conditions
from apps.nodes.services.gpu_health import take_health
from apps.nodes.services.telemetry.packing import Carried
from apps.nodes.services.telemetry.storing import Measured
from apps.quotas.principals import Principal
from apps.quotas.services import audit
from apps.scheduling import watching
from apps.scheduling.models import Assignment, Claim
from apps.scheduling.providers import jobs, remote_figures
from apps.scheduling.services.claims import memory_out
from apps.scheduling.services.claims.desired import desired_states
from apps.scheduling.services.claims.falls import record_fall
from apps.scheduling.services.claims.health import fence_if_wanted, tell_owners
from apps.scheduling.services.claims.observation import take_observed
from apps.scheduling.services.rebalancing import waking
from gpucloud import counters

logger = logging.getLogger(__name__)

# The actions in a claim's history, by the event's code.
TOLD_TO_OWNERS = {wire.LONG_KERNEL: "claim.long_kernel", wire.LENT_MEMORY_KEPT: "claim.program_ended"}


class Gateway:
    """The implementation of `apps.nodes.providers.NodeClaims`."""

    def desired(self, node_ids: Sequence[int]) -> dict[int, wire.Desired]:
        """Return the whole desired states of these nodes."""
        return desired_states(node_ids)

    def observed(self, node: Node, frame: wire.Observed) -> None:
        """Apply an agent's report of what is in force."""
        take_observed(node=node, frame=frame)

    def carried(self, node_ids: Sequence[int]) -> dict[int, dict[str, Carried]]:
        """Return the assignments on these nodes."""
        live = Assignment.objects.filter(gpu__node__in=node_ids).live()
        found: dict[int, dict[str, Carried]] = defaultdict(dict)
        columns = live.values_list("gpu__node_id", "uid", "gpu_id", "gpu__uuid", "claim__uid")
        for node_id, uid, gpu_id, gpu_uuid, claim_uid in columns:
            found[node_id][str(uid)] = Carried(uid.bytes, gpu_id, gpu_uuid, str(claim_uid))
        return dict(found)

    def measured(self, batch: Sequence[Measured]) -> None:
        """Give lent core back to the claims that are measured to work; mark those whose memory is out."""
        now = time.time()
        counters.TELEMETRY_FRAMES.add(amount=len(batch))
        for _, usage in batch:
            counters.TELEMETRY_SECONDS.observe(max(0.0, now - usage.at))
            _count_moved(usage)
        _record_remote(batch)
        memory_out.mark(batch)
        lending = {str(uid) for uid in Claim.objects.filter(lent_core__gt=0).values_list("uid", flat=True)}
        for source, usage in batch if lending else ():
            carried = source.carried or {}
            known = [(carried[item.uid].claim_uid, item) for item in usage.assignments if item.uid in carried]
            # Among several GPUs of a claim, the busiest comes last and counts.
            rising = sorted(known, key=lambda pair: pair[1].core_percent)
            if lenders := {claim: item for claim, item in rising if claim in lending}:
                waking.wake(lenders, at=datetime.fromtimestamp(usage.at, tz=UTC))

    async def show(self, batch: Sequence[Measured]) -> None:
        """Send the measurements to the pages that watch a node or one of its claims."""
        await watching.show(batch)

    @transaction.atomic
    def conditions(self, node: Node, frame: wire.Conditions) -> None:
        """Store conditions; record them for owners of claims on the GPUs; fence the node if its pool wants that."""
        tell_owners(node=node, changes=take_conditions(node=node, frame=frame))
        fence_if_wanted(node=node)

    def health(self, node: Node, frame: wire.Health) -> None:
        """Store the health of the GPUs; open pages read it with their next refresh."""
        uids = {one.claim_uid for one in frame.processes if one.claim_uid is not None}
        live = Assignment.objects.filter(gpu__node=node, claim__uid__in=uids).live()
        claims = (
            {str(uid): tenant for uid, tenant in live.values_list("claim__uid", "claim__tenant_id")} if uids else {}
        )
        take_health(node=node, frame=frame, claims=claims)

    def output(self, node: Node, frame: wire.Output) -> int | None:
        """Store a piece of the output of a job's run."""
        orders = jobs.find()
        return orders.output(node, frame) if orders is not None else None

    def event(self, node: Node, frame: wire.Event) -> None:
        """Store an event for operators; if a claim's process caused it, its tenant's admins see it too."""
        claim = _claim_of(frame, node)
        recorded = agent_rows.record(
            node=node,
            limit=agent_rows.EVENTS,
            action=f"agent.{frame.code}",
            tenant=claim.tenant if claim is not None else None,
            after={
                "detail": frame.detail,
                "assignment": frame.assignment_uid,
                "at": frame.at,
                "process": msgspec.to_builtins(frame.process),
            },
        )
        if recorded and claim is not None and (told := TOLD_TO_OWNERS.get(frame.code)):
            audit.record(Principal(name=f"agent:{node.name}"), told, claim, after={"detail": frame.detail})
        if recorded and frame.fallen is not msgspec.UNSET:
            record_fall(node, frame.code, frame.fallen)
        if recorded:
            logger.info("node %s: %s: %s", node.name, frame.code, frame.detail)


def _count_moved(usage: wire.Usage) -> None:
    """Count the borrowed memory that moved since the node's last sample."""
    for item in usage.assignments:
        if item.borrowed is not msgspec.UNSET and item.borrowed.moved_bytes:
            counters.MEMORY_MOVED.add(amount=item.borrowed.moved_bytes)
            counters.MEMORY_STOOD.add(amount=item.borrowed.stood_ms / 1000)


def _record_remote(batch: Sequence[Measured]) -> None:
    """Keep what clients on other machines use of claims that the node carries."""
    found = {
        source.carried[item.uid].claim_uid: item.remote
        for source, usage in batch
        for item in usage.assignments
        if item.remote is not msgspec.UNSET and source.carried and item.uid in source.carried
    }
    if found and (kept := remote_figures.find()) is not None:
        kept.record(found)


def _claim_of(frame: wire.Event, node: Node) -> Claim | None:
    """Return the claim of the event's process or assignment; a node is believed about claims that it carries only."""
    claims = Claim.objects.select_related("tenant")
    if frame.process is not None and frame.process.claim_uid is not None:
        return claims.filter(uid=frame.process.claim_uid, assignments__gpu__node=node).first()
    if frame.assignment_uid is not None:
        return claims.filter(assignments__uid=frame.assignment_uid, assignments__gpu__node=node).first()
    return None
