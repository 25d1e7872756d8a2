"""Accepted moves of a consolidation: those within a node are ordered, the others are refused in words."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db import transaction

from apps.quotas.models import Pool
from apps.quotas.principals import Principal
from apps.quotas.services import audit
from apps.scheduling.models import Claim
from apps.suspension.moving import move_claim
from gpucloud.errors import Conflict


@dataclass(frozen=True, slots=True)
class AcceptedMove:
    """A move as it was accepted, and why it is refused; None: it is ordered."""

    claim: UUID
    to_gpus: Sequence[str]
    refusal: str | None

    @property
    def state(self) -> str:
        """`moving` or `refused`."""
        return "moving" if self.refusal is None else "refused"


def accept_moves(
    *, principal: Principal, pool: Pool, moves: Sequence[tuple[UUID, Sequence[str]]]
) -> list[AcceptedMove]:
    """Order each move, in this order, by itself: one that is refused leaves the others as they are. Raises RoleMissing.

    A move into room that an earlier one leaves is refused until that has ended; it can be accepted again then.
    """
    principal.require_operator()
    found = [AcceptedMove(uid, gpus, _order(principal, pool, uid, gpus)) for uid, gpus in moves]
    ordered = sum(1 for move in found if move.refusal is None)
    audit.record(principal, "pool.consolidate", pool, after={"moves": len(found), "ordered": ordered})
    return found


def _order(principal: Principal, pool: Pool, uid: UUID, gpus: Sequence[str]) -> str | None:
    claim = Claim.objects.filter(pool=pool, uid=uid).select_related("tenant", "pool").first()
    if claim is None:
        return f"Pool {pool.name} has no claim {uid}."
    if not claim.rebalance:
        return "Its owner lets nobody move it: it has `rebalance` false."
    try:
        with transaction.atomic():
            move_claim(principal=principal, claim=claim, gpus=gpus)
    except Conflict as error:
        return error.detail
    return None
