"""The cast, the clock, and one node of two A100s."""

import pytest

from tests.cast import Cast, Machine, cast, give_plenty, real_cast
from tests.scheduling.clock import Clock, clock

__all__ = ["cast", "clock", "machine", "real_cast"]


@pytest.fixture
def machine(clock: Clock, cast: Cast) -> Machine:
    """Create the node."""
    give_plenty(cast.acme, cast.globex)
    return Machine("gpu1", cast.pool, gpus=2)
