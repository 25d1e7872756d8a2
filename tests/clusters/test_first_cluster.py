"""The cluster that was connected first keeps the short paths, whatever happens to it and to others."""

from collections.abc import Iterator

import pytest

from apps.clusters.management.commands.extender import Extenders
from apps.clusters.models import Cluster
from apps.clusters.services import clusters
from apps.quotas.principals import SYSTEM
from tests.cast import Cast
from tests.clusters.kubeconfigs import kubeconfig


@pytest.fixture
def served(cast: Cast) -> Iterator[Extenders]:
    for name in ("prod", "lab"):
        clusters.connect(principal=SYSTEM, name=name, pool=cast.pool, kubeconfig=kubeconfig())
    made = Extenders()
    made.refresh()
    yield made
    Cluster.objects.update(enabled=False)
    made.refresh()


def test_it_is_the_oldest(served: Extenders) -> None:
    assert (set(served), served.first) == ({"prod", "lab"}, "prod")


def test_it_stays_the_first_when_its_connection_is_changed(served: Extenders) -> None:
    """The mapping's order changes: a changed cluster is served anew, after the others."""
    clusters.change(principal=SYSTEM, cluster=Cluster.objects.get(name="prod"), strict=True)
    served.refresh()
    assert (list(served), served.first) == (["lab", "prod"], "prod")


def test_while_it_is_disabled_its_paths_are_nobodys(served: Extenders) -> None:
    Cluster.objects.get(name="prod").change(enabled=False)
    served.refresh()
    assert (list(served), served.first) == (["lab"], "prod")


def test_when_it_is_removed_the_next_oldest_is_the_first(served: Extenders) -> None:
    clusters.remove(principal=SYSTEM, cluster=Cluster.objects.get(name="prod"))
    served.refresh()
    assert (list(served), served.first) == (["lab"], "lab")
