"""What the machines of a pool have, asked of the app above: this app knows no GPUs.

Whoever does registers here once, when the apps are ready.
"""

from collections.abc import Callable

from apps.quotas.models import Pool

# pool → its `core_percent` and `memory_mib`, by resource.
Provider = Callable[[Pool], dict[str, int]]
_providers: list[Provider] = []


def register(provider: Provider) -> None:
    """Called once, when the app above is ready."""
    _providers[:] = [provider]


def capacity(pool: Pool) -> dict[str, int]:
    """Of all GPUs that are there."""
    return _providers[0](pool)
