"""What a tenant's claims hold already, asked of the app above: a quota that is made later must count it.

This app knows no claims; whoever does registers here once, when the apps are ready.
"""

import uuid
from collections.abc import Callable

from apps.quotas.models import Pool, Tenant

# (tenant, pool or None for all pools, resource) → what each live claim is charged with of it.
Provider = Callable[[Tenant, Pool | None, str], dict[uuid.UUID, int]]
# (tenant, user's key) → what the claims that the user made in the tenant are charged with, by resource.
ByUser = Callable[[Tenant, int], dict[str, int]]
_providers: list[tuple[Provider, ByUser]] = []


def register(provider: Provider, by_user: ByUser) -> None:
    """Called once, when the app above is ready."""
    _providers[:] = [(provider, by_user)]


def held(tenant: Tenant, pool: Pool | None, resource: str) -> dict[uuid.UUID, int]:
    """By claim. Ask under `charging.lock_tenants(…, alone=True)`, or a claim under way is missed."""
    return _providers[0][0](tenant, pool, resource)


def held_by(tenant: Tenant, user_id: int) -> dict[str, int]:
    """By resource. Ask under the lock of the membership, or a claim of the member under way is missed."""
    return _providers[0][1](tenant, user_id)
