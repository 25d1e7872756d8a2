"""What the gateway asks of the app above it: this app knows nodes, not claims."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from agent import wire
from apps.nodes.models import Node

if TYPE_CHECKING:
    from apps.nodes.services.telemetry.packing import Carried
    from apps.nodes.services.telemetry.storing import Measured


class Claims(Protocol):
    """Who knows what is wanted on a node and takes what was observed; every call is synchronous."""

    def desired(self, node_ids: Sequence[int]) -> dict[int, wire.Desired]:
        """The whole wanted state of each of these nodes that exists."""

    def observed(self, node: Node, frame: wire.Observed) -> None:
        """Take what is in force on the node."""

    def carried(self, node_ids: Sequence[int]) -> dict[int, dict[str, "Carried"]]:
        """The assignments on each of these nodes that are not released, by their uids."""

    def measured(self, batch: Sequence["Measured"]) -> None:
        """Take what was just stored."""

    async def show(self, batch: Sequence["Measured"]) -> None:
        """Show what was just stored to who watches."""

    def conditions(self, node: Node, frame: wire.Conditions) -> None:
        """Take how the node and its GPUs are."""

    def event(self, node: Node, frame: wire.Event) -> None:
        """Take what an operator should know."""


_claims: list[Claims] = []


def register(claims: Claims) -> None:
    """Called once, when the app above is ready."""
    _claims[:] = [claims]


def claims() -> Claims:
    """The registered one."""
    return _claims[0]


def group(node_id: int) -> str:
    """Return the hint group of a node's connection; names are chosen here, never by a peer."""
    return f"node.{node_id}"
