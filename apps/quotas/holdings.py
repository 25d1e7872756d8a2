"""What a tenant's claims hold already, asked of the app above: a quota that is made later must count it.

This app knows no claims; whoever does registers here once, when the apps are ready.
"""

import uuid
from collections.abc import Callable

from apps.quotas.models import Pool, Tenant

# (tenant, pool or None for all pools, resource) → what each live claim is charged with of it.
Provider = Callable[[Tenant, Pool | None, str], dict[uuid.UUID, int]]
_providers: list[Provider] = []


def register(provider: Provider) -> None:
    """Called once, when the app above is ready."""
    _providers[:] = [provider]


def held(tenant: Tenant, pool: Pool | None, resource: str) -> dict[uuid.UUID, int]:
    """By claim. Ask under `charging.lock_tenants(…, alone=True)`, or a claim under way is missed."""
    return _providers[0](tenant, pool, resource)
