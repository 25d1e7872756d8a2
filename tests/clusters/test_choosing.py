"""The filter by our own rules: the pool's policy and the tenant's quota, and the reasons of refusals."""

import json
import typing
from typing import Any

import pytest

from apps.clusters.extender import predicates
from apps.clusters.extender.choosing import ByLedger
from apps.clusters.importing import following
from apps.clusters.kube.client import Client
from apps.clusters.models import Cluster
from apps.clusters.services import bindings, clusters
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import Cast, Machine, ask, give, give_plenty, used
from tests.clusters.kubeconfigs import kubeconfig
from tests.clusters.paper import Paper, container, node, pod, request

Json = dict[str, Any]
NODES = [node("gpu1", 400, 384), node("elsewhere", 400, 384)]


@pytest.fixture
def cluster(cast: Cast) -> Cluster:
    Machine("gpu1", cast.pool).stay_online()
    made = clusters.connect(
        principal=SYSTEM, name="kube", pool=cast.pool, kubeconfig=kubeconfig(), placement="gpucloud"
    )
    bindings.bind(principal=SYSTEM, cluster=made, namespace="ml", tenant=cast.acme)
    return made


def ask_extender(cluster: Cluster, item: Json, *others: Json) -> tuple[list[str], Json, Json]:
    """Return nodes, refusals, and the pod's annotations."""
    paper = Paper(NODES, [item, *others])
    choose = ByLedger(cluster, typing.cast(Client, paper), paper.mirror)
    said = json.loads(predicates.answer(paper.extended(choose=choose), request(item, NODES)))
    assert said["Error"] == ""
    names = [found["metadata"]["name"] for found in said["Nodes"]["items"]]
    return names, said["FailedNodes"], item["metadata"]["annotations"]


def test_a_pod_gets_gpus_of_a_node_of_ours(cast: Cast, cluster: Cluster) -> None:
    give_plenty(cast.acme)
    names, failed, annotations = ask_extender(cluster, pod("p", container(30, 10), container(200)))
    assert (names, set(failed)) == (["gpu1"], {"elsewhere"})
    part, whole = (annotations[f"tencent.com/predicate-gpu-idx-{place}"] for place in (0, 1))
    assert len({part, *whole.split(",")}) == 3


def test_nothing_is_charged_before_the_pod_is_bound(cast: Cast, cluster: Cluster) -> None:
    give(cast.acme, core_percent=100, memory_mib=100_000)
    ask_extender(cluster, pod("p", container(30, 10)))
    assert used(cast.acme)["core_percent"] == 0
    assert not Claim.objects.exists()


def test_a_pod_above_its_tenants_quota_is_refused_in_numbers(cast: Cast, cluster: Cluster) -> None:
    give(cast.acme, core_percent=100, memory_mib=100_000)
    ask(cast, core_request=90, memory_mib=100)
    names, failed, annotations = ask_extender(cluster, pod("p", container(30, 10)))
    assert (names, annotations) == ([], {})
    assert failed["gpu1"] == "Core quota exceeded: requested 30 %, 10 % of 100 % available"


def test_what_claims_hold_outside_of_kubernetes_is_not_given_again(cast: Cast, cluster: Cluster) -> None:
    give_plenty(cast.acme)
    for _ in range(4):
        placed_claim(cast, core_request=60)
    names, failed, _ = ask_extender(cluster, pod("p", container(50, 10)))
    assert names == []
    assert "less than 50" in failed["gpu1"]


def placed_claim(cast: Cast, **facts: Any) -> None:
    """Create a claim on the cluster's machine."""
    ask(cast, **facts)
    run_round(cast.pool)


def test_what_an_unbound_pod_was_promised_is_not_given_again(cast: Cast, cluster: Cluster) -> None:
    give_plenty(cast.acme)
    promised = {"tencent.com/predicate-gpu-idx-0": "0,1,2", "tencent.com/predicate-node": "gpu1"}
    names, _, annotations = ask_extender(
        cluster, pod("p", container(100)), pod("q", container(300), annotations=promised)
    )
    assert (names, annotations["tencent.com/predicate-gpu-idx-0"]) == (["gpu1"], "3")


def test_what_an_unbound_pod_was_promised_beside_a_claim_is_not_given_again(cast: Cast, cluster: Cluster) -> None:
    """Neither the ledger nor the annotations alone know that no GPU has 30 left."""
    give_plenty(cast.acme)
    for _ in range(4):
        placed_claim(cast, core_request=60)
    promised = [
        pod(
            f"q{index}",
            container(20, 1),
            annotations={"tencent.com/predicate-gpu-idx-0": str(index), "tencent.com/predicate-node": "gpu1"},
        )
        for index in range(4)
    ]
    names, failed, _ = ask_extender(cluster, pod("p", container(30, 1)), *promised)
    assert names == []
    assert "less than 30" in failed["gpu1"]
    assert ask_extender(cluster, pod("p", container(20, 1)), *promised)[0] == ["gpu1"]


def test_what_unbound_pods_were_promised_counts_for_their_tenants_quota(cast: Cast, cluster: Cluster) -> None:
    give(cast.acme, core_percent=100, memory_mib=100_000)
    promised = {"tencent.com/predicate-gpu-idx-0": "0", "tencent.com/predicate-node": "gpu1"}
    first = pod("q", container(80, 1), annotations=promised)
    names, failed, _ = ask_extender(cluster, pod("p", container(30, 1)), first)
    assert (names, failed["gpu1"]) == ([], "Core quota exceeded: requested 30 %, 20 % of 100 % available")
    others = pod("q", container(80, 1), annotations=promised)
    others["metadata"]["namespace"] = "other"
    assert ask_extender(cluster, pod("p", container(30, 1)), others)[0] == ["gpu1"]


def test_a_pod_in_the_ledger_is_not_charged_again(cast: Cast, cluster: Cluster) -> None:
    give(cast.acme, core_percent=100, memory_mib=100_000)
    promised = {"tencent.com/predicate-gpu-idx-0": "0", "tencent.com/predicate-node": "gpu1"}
    bound = pod("q", container(70, 1), annotations=promised, on="gpu1")
    following.follow(cluster=cluster, pod=bound, labels={})
    assert ask_extender(cluster, pod("p", container(30, 1)), bound)[0] == ["gpu1"]


def test_a_pod_of_nobodys_namespace_is_refused(cast: Cast, cluster: Cluster) -> None:
    item = pod("p", container(30, 10))
    item["metadata"]["namespace"] = "other"
    names, failed, _ = ask_extender(cluster, item)
    assert (names, failed["gpu1"]) == ([], "Namespace other is bound to no tenant: bind it.")
