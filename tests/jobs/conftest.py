"""The cast, and one node that runs jobs, in a pool that allows them."""

import pytest

from apps.nodes.models import Node
from apps.quotas.models import Pool
from tests.cast import Cast, Machine, cast, give_plenty, real_cast

__all__ = ["cast", "machine", "real_cast"]


@pytest.fixture
def machine(cast: Cast) -> Machine:
    """Create one node of four GPUs, and no limiting quota."""
    return make_machine(cast)


def make_machine(cast: Cast, name: str = "gpu1") -> Machine:
    """Create a node whose agent runs jobs."""
    if name == "gpu1":
        give_plenty(cast.acme, cast.globex)
    Pool.objects.filter(pk=cast.pool.pk).update(jobs=True)
    cast.pool.refresh_from_db()
    machine = Machine(name, cast.pool).stay_online()
    Node.objects.filter(pk=machine.node.pk).update(jobs=True)
    return machine


@pytest.fixture
def machine_of(real_cast: Cast) -> Machine:
    """Create such a node for tests that race, with connections of their own."""
    return make_machine(real_cast)
