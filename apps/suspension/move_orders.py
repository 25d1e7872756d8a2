"""Orders to move claims, for scheduling's drains and accepted proposals (`apps.scheduling.providers`)."""

from apps.suspension.between.carrying import may_carry
from apps.suspension.between.ordering import find_move_obstacle, move_claim_to_node
from apps.suspension.moving import move_claim

__all__ = ["find_move_obstacle", "may_carry", "move_claim", "move_claim_to_node"]
