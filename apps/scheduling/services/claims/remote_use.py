"""The use of claims from other machines: what a change of the field `remote` needs."""

from collections.abc import Mapping
from typing import Any

from apps.scheduling.models import Claim
from apps.scheduling.models.choices import Remote
from gpucloud.errors import Conflict


class NodeUnreachable(Conflict, code="no-remote-endpoint", title="The claim's node takes no remote clients"):
    """The claim has its place already, on a node that is not set up for remote shares."""


def refuse_unreachable(claim: Claim, changed: Mapping[str, Any]) -> None:
    """Refuse to require remote use of a claim on a node that takes no clients. Raises NodeUnreachable."""
    if changed.get("remote") != Remote.REQUIRE:
        return
    for row in claim.assignments.live().select_related("gpu__node"):
        if row.counterpart_id is None and row.gpu.node.remote is None:
            name = row.gpu.node.name
            raise NodeUnreachable(
                f"Node {name} takes no remote clients: release the claim, and make it with remote require.", node=name
            )
