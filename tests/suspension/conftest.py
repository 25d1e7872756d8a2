"""The cast, and one node whose agent can suspend claims."""

import pytest

from tests.cast import GIB, Cast, Machine, cast, give_plenty, real_cast
from tests.scheduling.clock import clock

__all__ = ["cast", "clock", "machine", "real_cast"]


@pytest.fixture
def machine(cast: Cast) -> Machine:
    """Create one node of four GPUs with 20 GiB for suspended claims, and no limiting quota."""
    give_plenty(cast.acme, cast.globex)
    return Machine("gpu1", cast.pool, host_memory_mib=20 * GIB).stay_online()
