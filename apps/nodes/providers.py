"""Interfaces that this app needs from higher apps: it knows nodes, not claims."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from agent import wire
from apps.nodes.models import Node
from gpucloud.providers import Provider

if TYPE_CHECKING:
    from apps.nodes.services.telemetry.packing import Carried
    from apps.nodes.services.telemetry.storing import Measured


class NodeClaims(Protocol):
    """Claims of nodes: desired state, and the receiver of agents' reports. Every call but `show` is synchronous."""

    def desired(self, node_ids: Sequence[int]) -> dict[int, wire.Desired]:
        """Return the desired state of each of these nodes that exists."""

    def observed(self, node: Node, frame: wire.Observed) -> None:
        """Record what is in force on the node."""

    def carried(self, node_ids: Sequence[int]) -> dict[int, dict[str, "Carried"]]:
        """Return the assignments on each of these nodes that are not released, by uid."""

    def measured(self, batch: Sequence["Measured"]) -> None:
        """Record measurements that were just stored."""

    async def show(self, batch: Sequence["Measured"]) -> None:
        """Send measurements that were just stored to the pages that watch them."""

    def conditions(self, node: Node, frame: wire.Conditions) -> None:
        """Record the conditions of the node and its GPUs."""

    def health(self, node: Node, frame: wire.Health) -> None:
        """Record the health of the node's GPUs."""

    def output(self, node: Node, frame: wire.Output) -> int | None:
        """Store a piece of a run's output; return the run's stored bytes, None if the node has no such run."""

    def event(self, node: Node, frame: wire.Event) -> None:
        """Record an event that an operator should know."""


node_claims: Provider[NodeClaims] = Provider("nodes.node_claims")
# Returns the name in Kubernetes for which a cluster vouched when the node joined by it; empty if none did.
vouched_name: Provider[Callable[[Node], str]] = Provider("nodes.vouched_name")
