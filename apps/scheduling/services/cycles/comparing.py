"""Comparison of a pool's cache with the database, in parts: a large pool takes seconds, and rounds run in between."""

from collections.abc import Iterator

from apps.nodes.models import Node
from apps.scheduling.models import Claim
from apps.scheduling.services.cycles.pool_cache import PoolCache

# A tenth of a second with eight GPUs on each.
NODES_AT_ONCE = 250


def compare(cache: PoolCache) -> int:
    """Read everything again; return how many rows differed from the cache."""
    return sum(compare_in_parts(cache))


def compare_in_parts(cache: PoolCache) -> Iterator[int]:
    """Read everything again, some nodes at a time; yield how many rows of each part differed from the cache."""
    nodes = sorted({*Node.objects.filter(pool=cache.pool).values_list("pk", flat=True), *cache.node_ids})
    for first in range(0, len(nodes), NODES_AT_ONCE):
        # Silence sends no notice: a node may have fallen silent since the last part.
        cache.refresh_silent_nodes()
        yield cache.refresh_devices(nodes=set(nodes[first : first + NODES_AT_ONCE]))
    yield _compare_claims(cache)


def _compare_claims(cache: PoolCache) -> int:
    kept = {(key, waiting.claim.version) for key, waiting in cache.waiting.items()}
    there = set(Claim.objects.in_queue().filter(pool=cache.pool).values_list("pk", "version"))
    stale = {key for key, _ in kept ^ there}
    if stale:
        cache.refresh_claims(stale)
    return len(stale)
