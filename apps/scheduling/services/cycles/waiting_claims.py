"""Waiting claims as a pool's cache has them: the request of each, and which of them are alike."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from apps.nodes.services.back_ends import sharing_group
from apps.quotas.models import Pool
from apps.scheduling.core.values import Request
from apps.scheduling.models import Claim, ClaimState
from apps.scheduling.services.claims.lifecycle import request_of
from apps.scheduling.services.fleet.reserved import Terms


class Kind(NamedTuple):
    """The properties by which claims are alike: claims of one kind get one answer at one moment."""

    request: Request
    tenant_id: int
    user_id: int | None
    charged: bool
    # The properties that decide which room is withheld from the claim, if anything is reserved.
    terms: Terms | None = None


def shape(request: Request) -> Request:
    """Return the part of the request by which typical requests are counted."""
    return Request(
        request.gpu_count, request.core_request, request.memory_mib, request.gpu_model, cpu_milli=request.cpu_milli
    )


def learned_mix(claims: Iterable[Claim]) -> list[tuple[Request, int]]:
    """Return the typical requests, with counts."""
    shapes = (shape(request_of(claim)) for claim in claims if claim.profile is None)
    return sorted(Counter(shapes).items(), key=repr)


# The key of a group: tenant, name and size.
Group = tuple[int, str, int]


def group_of(claim: Claim) -> Group | None:
    """Return the group that the claim is placed with; None if it is placed alone."""
    return None if claim.group is None else (claim.tenant_id, claim.group, claim.group_size or 1)


def asks(claim: Claim, pool: Pool) -> Request:
    """Return the claim's request to the fleet of its pool.

    A claim for which room is being freed, or that waits to resume, is alike to no other, so its request carries
    its own key.
    """
    request = request_of(claim)
    group = sharing_group(pool.backend, pool.mps_group, claim.tenant_id) if claim.profile is None else None
    if group is not None and claim.gpu_count:
        request = replace(request, sharing_group=group)
    alike = claim.nominated_gpus is None and claim.state != ClaimState.RESUMING
    return request if alike else replace(request, key=str(claim.uid))


@dataclass(slots=True)
class WaitingClaim:
    """A claim of the queue as it was read last."""

    claim: Claim
    kind: Kind

    @property
    def request(self) -> Request:
        """The claim's request to the fleet."""
        return self.kind.request
