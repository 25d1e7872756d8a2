"""Tickets by which one client uses a claim from another machine."""

import hashlib
import secrets
from typing import Any, NamedTuple

from django.db import transaction
from redis.exceptions import RedisError

from agent import wire
from apps.nodes.models import Node
from apps.nodes.models.node import hint_group
from apps.quotas.principals import Principal
from apps.quotas.services import audit
from apps.scheduling.models import Claim
from apps.scheduling.models.choices import Remote
from apps.scheduling.models.claim import PLACED
from gpucloud import hints
from gpucloud.errors import Busy, Conflict, Denied

MIB = 1 << 20
# From the answer to the client's first connection.
TICKET_SECONDS = 120


class RemoteNotAllowed(Denied, code="remote-not-allowed", title="The claim may not be used from other machines"):
    """Its pool or its tenant does not allow it."""


class NoRemoteEndpoint(Conflict, code="no-remote-endpoint", title="The claim's node takes no remote clients"):
    """The claim is not placed, or its node is not set up for remote shares."""


class NodeNotTold(Busy, code="node-not-told", title="The node could not be told"):
    """The message bus of the servers cannot be reached."""


class Place(NamedTuple):
    """The address of a claim's node, and a ticket for it."""

    claim: str
    node: str
    host: str
    port: int
    fingerprint: str
    component: str
    build: str
    ticket: str
    expires_in_seconds: int


def open_remote(*, principal: Principal, claim: Claim, key_digest: str) -> Place:
    """Let the client with this key use the claim, once. Raises RoleMissing and this module's errors."""
    principal.require_role(claim.tenant, "member")
    _require_allowed(claim)
    node = _find_node(claim)
    ticket, facts = secrets.token_urlsafe(32), dict(node.remote or {})
    with transaction.atomic():
        audit.record(principal, "claim.remote", claim, after={"node": node.name, "key": key_digest[:16]})
    frame = wire.RemoteTicket(
        claim_uid=str(claim.uid),
        ticket=hashlib.sha256(ticket.encode()).hexdigest(),
        key=key_digest,
        seconds=TICKET_SECONDS,
        owner=claim.tenant_id,
        bytes_per_second=(claim.pool.remote_mib_per_second or 0) * MIB,
    )
    _tell(node, frame)
    return Place(str(claim.uid), node.name, **facts, ticket=ticket, expires_in_seconds=TICKET_SECONDS)


def _require_allowed(claim: Claim) -> None:
    if claim.remote == Remote.NEVER:
        raise RemoteNotAllowed("The claim is not used from other machines: its field `remote` is never.")
    for kind, row in (("Pool", claim.pool), ("Tenant", claim.tenant)):
        if not row.remote:
            words = f"{kind} {row} does not allow remote shares: an operator can (its field `remote`)."
            raise RemoteNotAllowed(words)


def _find_node(claim: Claim) -> Node:
    """Return the claim's node, which has an address for clients. Raises NoRemoteEndpoint."""
    live = [row for row in claim.assignments.live().select_related("gpu__node") if row.counterpart_id is None]
    if claim.state not in PLACED or not live:
        raise NoRemoteEndpoint(f"The claim is {claim.state}: it has no GPU to run on.")
    node: Node = live[0].gpu.node
    if node.remote is None:
        raise NoRemoteEndpoint(f"Node {node.name} takes no remote clients: make the claim with `remote` require.")
    if not node.online:
        raise NoRemoteEndpoint(f"Node {node.name} is lost: its agent cannot let anybody in.")
    return node


def _tell(node: Node, frame: wire.RemoteTicket) -> None:
    facts: dict[str, Any] = {name: getattr(frame, name) for name in wire.RemoteTicket.__struct_fields__ if name != "v"}
    try:
        hints.publish([(hint_group(node.pk), {"type": "node.remote", **facts})])
    except (RedisError, OSError) as error:
        raise NodeNotTold("The message bus of the servers cannot be reached: try again.") from error
