"""Waiting claims as a cache keeps them: what each asks, and which of them are alike."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from apps.scheduling.core.values import Request
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.lifecycle import request_of
from apps.scheduling.services.fleet.reserved import Terms


class Kind(NamedTuple):
    """Claims of one kind get one answer at one moment."""

    request: Request
    tenant_id: int
    user_id: int | None
    charged: bool
    # What of it decides which room is kept from it, where something is reserved.
    terms: Terms | None = None


def shape(request: Request) -> Request:
    """What of a request makes it like others."""
    return Request(
        request.gpu_count, request.core_request, request.memory_mib, request.gpu_model, cpu_milli=request.cpu_milli
    )


# A tenant's claims of one group and size.
Group = tuple[int, str, int]


def group_of(claim: Claim) -> Group | None:
    """The group it is placed with; None: it is placed alone."""
    return None if claim.group is None else (claim.tenant_id, claim.group, claim.group_size or 1)


def asks(claim: Claim) -> Request:
    """What it asks; for whom room is being made is alike to nobody else."""
    request = request_of(claim)
    return request if claim.nominated_gpus is None else replace(request, key=str(claim.uid))


@dataclass(slots=True)
class Waiting:
    """A claim of the queue as it was read last."""

    claim: Claim
    kind: Kind

    @property
    def request(self) -> Request:
        """What it asks of the fleet."""
        return self.kind.request
