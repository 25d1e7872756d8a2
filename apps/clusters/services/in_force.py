"""The limits of a claim, as its nodes have confirmed them."""

from apps.scheduling.models import AssignmentState, Claim, ClaimState


def pending_reason(claim: Claim) -> str | None:
    """Return why the claim's limits, as they are now, are not in force on all of its GPUs; None if they are."""
    behind = [
        one
        for one in claim.assignments.all()
        if one.state != AssignmentState.RELEASED
        and (one.state != AssignmentState.IN_FORCE or one.observed_generation < one.generation)
    ]
    if claim.state == ClaimState.ACTIVE and not behind:
        return None
    return next((one.reason for one in behind if one.reason), None) or f"the claim is {claim.state}"
