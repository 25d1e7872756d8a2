"""Interfaces that quotas need from higher apps: this app knows neither claims nor GPUs."""

import uuid
from collections import Counter
from typing import Protocol

from apps.quotas.models import Pool, Tenant
from gpucloud.providers import Provider


class ClaimCharges(Protocol):
    """Charges of live claims; a new quota must include them."""

    def charged_by_claim(self, tenant: Tenant, pool: Pool | None, resource: str) -> dict[uuid.UUID, int]:
        """Return the charge of each claim and reservation for the resource, in one pool or in all.

        Call it under `charging.lock_tenants(…, exclusive=True)`, or concurrent claims are missed.
        """

    def charged_by_user(self, tenant: Tenant, user_id: int) -> Counter[str]:
        """Return the sum of the user's claims, by resource; instances of each profile are counted.

        Call it under the lock of the membership, or the member's concurrent claims are missed.
        """


class RemotePermits(Protocol):
    """The nodes that let clients of other machines in."""

    def push(self, tenant: Tenant) -> None:
        """Tell the nodes of the tenant's claims, after the commit, whether clients may use them."""


class PoolCapacity(Protocol):
    """Capacity of the machines of a pool."""

    def of_pool(self, pool: Pool) -> dict[str, int]:
        """Return `core_percent` and `memory_mib` of all GPUs that are present."""


claim_charges: Provider[ClaimCharges] = Provider("quotas.claim_charges")
pool_capacity: Provider[PoolCapacity] = Provider("quotas.pool_capacity")
remote_permits: Provider[RemotePermits] = Provider("quotas.remote_permits")
