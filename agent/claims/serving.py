"""MPS servers as launches see them; `agent.mps` has them."""

from typing import Protocol

from agent.claims.claim import ClaimRuntime
from agent.local_wire import Refusal


class Serving(Protocol):
    """The MPS servers of the node's claims, as far as launches need them."""

    def obstacle(self, claim_uid: str) -> Refusal | None:
        """Return why the claim's programs would find no server; None if they would, or need none."""

    def variables(self, runtime: ClaimRuntime) -> dict[str, str]:
        """Return the variables by which a program of the claim finds its server."""
