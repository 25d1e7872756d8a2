"""ResourceClaims in the API and on their cluster's page."""

import pytest

from apps.clusters.models import Cluster, DeviceClaim
from apps.clusters.services import bindings, clusters
from apps.quotas.principals import SYSTEM
from apps.quotas.services.tenants import InUse
from tests.cast import Cast, ask, give
from tests.clusters.kubeconfigs import kubeconfig
from tests.pages.conftest import SignIn, browser

__all__ = ["browser"]


@pytest.fixture
def cluster(cast: Cast) -> Cluster:
    made = clusters.connect(principal=SYSTEM, name="kube", pool=cast.pool, kubeconfig=kubeconfig())
    bindings.bind(principal=SYSTEM, cluster=made, tenant=cast.acme, namespace="vision")
    give(cast.acme, core_percent=None, memory_mib=None)
    facts = {"cluster": made, "namespace": "vision"}
    DeviceClaim.objects.create(**facts, uid="1", name="train", tenant=cast.acme, claim=ask(cast), node_name="gpu1")
    DeviceClaim.objects.create(**facts, uid="2", name="waits", problem="Core quota exceeded")
    return made


def test_they_are_listed_with_their_claims_and_problems(cast: Cast, cluster: Cluster) -> None:
    waits, train = cast.olga.get("clusters/kube/resource-claims/").body["results"]
    assert (waits["name"], waits["claim"], waits["problem"]) == ("waits", None, "Core quota exceeded")
    assert (train["name"], train["node_name"], train["problem"]) == ("train", "gpu1", "")
    assert cast.gus.get("clusters/kube/resource-claims/").status == 404
    assert len(cast.olga.get("clusters/kube/resource-claims/?name=train&live=true").body["results"]) == 1


def test_the_page_shows_problems_first(cluster: Cluster, browser: SignIn) -> None:
    text = browser("olga").get("/clusters/kube/").content.decode()
    assert 0 < text.index("Core quota exceeded") < text.index(">train ")


def test_a_cluster_whose_resource_claims_hold_claims_stays(cast: Cast, cluster: Cluster) -> None:
    with pytest.raises(InUse):
        clusters.remove(principal=SYSTEM, cluster=cluster)
    cast.max.delete(f"claims/{DeviceClaim.objects.get(name='train').claim.uid}/")  # type: ignore[union-attr]
    clusters.remove(principal=SYSTEM, cluster=cluster)
    assert not DeviceClaim.objects.exists()
