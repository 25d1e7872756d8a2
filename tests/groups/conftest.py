"""The cast, and one node of four GPUs."""

import pytest

from tests.cast import Cast, Machine, cast, give_plenty, real_cast

__all__ = ["cast", "machine", "real_cast"]


@pytest.fixture
def machine(cast: Cast) -> Machine:
    """Create one node of four GPUs, and no limiting quota."""
    give_plenty(cast.acme, cast.globex)
    return Machine("gpu1", cast.pool).stay_online()
