"""What quotas ask of the apps above them: this app knows no claims and no GPUs."""

import uuid
from typing import Protocol

from apps.quotas.models import Pool, Tenant
from gpucloud.providers import Provider


class ClaimCharges(Protocol):
    """Charges of live claims; a quota that is made later must count them."""

    def charged_by_claim(self, tenant: Tenant, pool: Pool | None, resource: str) -> dict[uuid.UUID, int]:
        """Return what each claim and reservation charges of the resource, in one pool or in all.

        Call it under `charging.lock_tenants(…, exclusive=True)`, or a claim under way is missed.
        """

    def charged_by_user(self, tenant: Tenant, user_id: int) -> dict[str, int]:
        """Return what the user's claims charge, by resource.

        Call it under the lock of the membership, or a claim of the member under way is missed.
        """


class PoolCapacity(Protocol):
    """Capacity of the machines of a pool."""

    def of_pool(self, pool: Pool) -> dict[str, int]:
        """Return `core_percent` and `memory_mib` of all GPUs that are present."""


claim_charges: Provider[ClaimCharges] = Provider("quotas.claim_charges")
pool_capacity: Provider[PoolCapacity] = Provider("quotas.pool_capacity")
