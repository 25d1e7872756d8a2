"""Moves to another node that is silent: they are given up as long as nothing can run there."""

from django.utils import timezone

from apps.nodes.models.node import FRESH
from apps.scheduling.models import Claim, ClaimState
from apps.suspension.between.reports import refuse


def give_up() -> int:
    """Let claims whose new node is lost go on where they were; return their number.

    Once a node may have put the claim in force, only its own word ends the move, or the operator who forgets it.
    """
    silent = timezone.now() - FRESH
    rows = Claim.objects.filter(
        state=ClaimState.SUSPENDING,
        assignments__counterpart__isnull=False,
        assignments__state__in=("suspending", "suspended"),
        assignments__gpu__node__last_seen_at__lt=silent,
    )
    claims = list(rows.distinct().order_by("pk"))
    for claim in claims:
        refuse(claim, f"Node {claim.moves_to} is silent.")
    return len(claims)
