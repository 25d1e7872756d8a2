"""The cast, and one node of two GPUs that can move claims, in a pool that packs."""

import pytest

from apps.quotas.principals import SYSTEM
from apps.scheduling.services.claims.sharing import change_pool
from tests.cast import GIB, Cast, Machine, cast, give_plenty, real_cast
from tests.scheduling.clock import Clock, clock

__all__ = ["cast", "clock", "machine", "real_cast"]


@pytest.fixture
def machine(clock: Clock, cast: Cast) -> Machine:
    """Create the node, and switch packing on as proposals."""
    give_plenty(cast.acme, cast.globex)
    change_pool(
        principal=SYSTEM, pool=cast.pool, rebalance_mode="propose", pack_keep_percent=90, placement_policy="spread"
    )
    cast.pool.refresh_from_db()
    return Machine("gpu1", cast.pool, gpus=2, host_memory_mib=64 * GIB)
