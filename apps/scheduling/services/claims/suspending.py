"""Suspensions that the platform orders: tried once, and what cannot be suspended ends as it did without them."""

from collections.abc import Sequence

from django.db import transaction

from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim
from apps.scheduling.providers import suspension_orders
from apps.scheduling.services.claims.suspension_reports import RESUME_REFUSED, SUSPEND_REFUSED
from gpucloud.errors import Conflict


def try_suspend(claim: Claim, *, by: str, why: str) -> str | None:
    """Order the suspension of the locked claim; return why that is refused, None once it is ordered.

    A claim that its node has refused to suspend is not tried again.
    """
    if refusal := find_refusal(claim, SUSPEND_REFUSED):
        return refusal
    try:
        # What was charged before the refusal is undone.
        with transaction.atomic():
            suspension_orders.get().suspend_claim(principal=SYSTEM, claim=claim, by=by, why=why)
    except Conflict as error:
        return error.detail
    return None


def resume(claim: Claim, *, by: str) -> bool:
    """Let a claim that this order has suspended wait for its GPUs; False if its node refused that already."""
    if find_refusal(claim, RESUME_REFUSED):
        return False
    return suspension_orders.get().resume_claim(principal=SYSTEM, claim=claim, by=by).waits_to_resume


def find_obstacles(claims: Sequence[Claim]) -> dict[int, str]:
    """Return by key why each could not be suspended now, together with those before it.

    Those that nothing is known to be against are left out.
    """
    refused = {claim.pk: refusal for claim in claims if (refusal := find_refusal(claim, SUSPEND_REFUSED))}
    left = [claim for claim in claims if claim.pk not in refused]
    return refused | (suspension_orders.get().find_obstacles(left) if left else {})


def find_refusal(claim: Claim, code: str) -> str | None:
    """Return its node's last refusal to suspend or resume the claim, as its reasons have it; None without one."""
    return next((reason["detail"] for reason in claim.reasons if reason["code"] == code), None)
