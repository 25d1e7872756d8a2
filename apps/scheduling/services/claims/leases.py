"""Leases: a claim whose holder may be killed ends by itself.

The holder renews the lease; a killed holder does not, and the claim is released when its lease has run out, whether it
is placed or still waits. A renewal is a heartbeat: it raises the version like any change and writes no audit row of its
own (the decision on leases says why); the audit row of the release names a lapsed lease.
"""

from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from apps.quotas.principals import SYSTEM, Principal
from apps.scheduling.models import Claim, ClaimState
from apps.scheduling.services.claims.lifecycle import WrongState, locked, release_claim
from apps.scheduling.services.failures import each
from gpucloud.api import etags
from gpucloud.errors import Conflict, PreconditionFailed

ENDED = (ClaimState.RELEASING, ClaimState.RELEASED)


class NoLease(Conflict, code="no-lease", title="The claim has no lease"):
    """The claim has no lease, so there is nothing to renew."""


@transaction.atomic
def renew_claim(*, principal: Principal, claim: Claim, versions: etags.Versions = None) -> Claim:
    """Let the lease run anew from now. Raises NoLease, WrongState once the claim is released, RoleMissing."""
    principal.require_role(claim.tenant, "member")
    claim = locked(claim, versions)
    if claim.state in ENDED:
        raise WrongState(f"The claim is {claim.state}: make a new one.", state=claim.state)
    if claim.lease_seconds is None:
        raise NoLease("It was made without lease_seconds and stays until it is released or its time limit passes.")
    claim.change(lease_until=timezone.now() + timedelta(seconds=claim.lease_seconds))
    return claim


def release_lapsed(*, now: datetime | None = None) -> int:
    """Release every claim whose lease has run out; return the number of claims."""
    lapsed = (
        Claim.objects.exclude(state__in=ENDED).filter(lease_until__lt=now or timezone.now()).select_related("tenant")
    )
    return each(lapsed, _release)


def _release(claim: Claim) -> bool:
    why = f"its lease of {claim.lease_seconds} s was not renewed"
    try:
        # At this version only: a renewal that comes in between wins.
        release_claim(principal=SYSTEM, claim=claim, versions=frozenset({claim.version}), why=why)
    except PreconditionFailed:
        return False
    return True
