"""Pods in the ledger: one ledger for pods, containers and bare processes. Watch events are written out here."""

from typing import Any

import pytest

from apps.clusters.importing import following
from apps.clusters.models import Cluster, PodClaim
from apps.clusters.services import bindings, clusters
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim
from tests.cast import Cast, Machine, assert_books_agree, give, give_plenty, used
from tests.clusters import paper
from tests.clusters.kubeconfigs import kubeconfig

Json = dict[str, Any]


@pytest.fixture
def machine(cast: Cast) -> Machine:
    return Machine("gpu1", cast.pool)


@pytest.fixture
def cluster(cast: Cast) -> Cluster:
    made = clusters.connect(principal=SYSTEM, name="kube", pool=cast.pool, kubeconfig=kubeconfig())
    bindings.bind(principal=SYSTEM, cluster=made, namespace="ml", tenant=cast.acme)
    return made


def running(name: str, *containers: Json, gpus: str = "0", on: str = "gpu1", **more: Any) -> Json:
    indexes = {f"tencent.com/predicate-gpu-idx-{place}": gpus for place in range(len(containers))}
    return paper.pod(name, *containers, annotations={**indexes, "tencent.com/predicate-node": on}, on=on, **more)


def follow(cluster: Cluster, pod: Json, **labels: str) -> PodClaim:
    following.follow(cluster=cluster, pod=pod, labels=labels)
    return PodClaim.objects.get(pod=pod["metadata"]["name"])


def test_a_bound_pod_is_charged_and_holds_its_gpu(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    give(cast.acme, core_percent=100, memory_mib=59 * 256)
    row = follow(cluster, running("train", paper.container(30, 10), gpus="2"))
    assert row.claim is not None
    assert (row.node, row.gpu_indexes, row.problem) == (machine.node, [2], "")
    assert used(cast.acme) == {"core_percent": 30, "memory_mib": 2560}
    assert (machine.gpu(2).core_used, machine.gpu(2).memory_used_mib) == (30, 2560)
    machine.obey()
    claim = Claim.objects.get()
    named = {"namespace": "ml", "name": "train", "container": "main", "uid": "uid-train"}
    assert (claim.state, claim.pod) == ("active", named)
    assert_books_agree()


def test_looking_twice_charges_once(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    give_plenty(cast.acme)
    for _ in range(2):
        follow(cluster, running("train", paper.container(30, 10)))
    assert Claim.objects.count() == 1
    assert_books_agree()


def test_a_pod_that_is_over_gives_back_when_its_node_says_so(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    give_plenty(cast.acme)
    follow(cluster, running("train", paper.container(200, 1), gpus="1,3"))
    machine.obey()
    assert following.end(cluster=cluster, pod_uid="uid-train") == 1
    assert following.end(cluster=cluster, pod_uid="uid-train") == 0
    machine.obey()
    assert Claim.objects.get().state == "released"
    assert used(cast.acme)["core_percent"] == 0
    assert_books_agree()


def test_the_next_pod_of_a_name_has_its_own_claim(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    """A StatefulSet makes such pods; the end of the first one was not reported."""
    give_plenty(cast.acme)
    first = follow(cluster, running("web-0", paper.container(100), gpus="1"))
    again = running("web-0", paper.container(100), gpus="1")
    again["metadata"]["uid"] = "uid-of-the-next"
    following.follow(cluster=cluster, pod=again, labels={})
    first.refresh_from_db()
    assert first.ended_at is not None
    # Its GPU is the next pod's once the node has confirmed that the first is gone.
    machine.obey()
    following.follow(cluster=cluster, pod=again, labels={})
    claim = PodClaim.objects.live().get().claim
    assert claim is not None
    assert claim.pod is not None
    assert (claim.state, claim.pod["uid"]) == ("assigned", "uid-of-the-next")
    assert_books_agree()


def test_what_ended_while_nobody_watched_is_found(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    give_plenty(cast.acme)
    for name in ("stays", "goes"):
        follow(cluster, running(name, paper.container(30, 10)))
    assert following.end_others(cluster=cluster, live=["uid-stays"], is_there=lambda row: False) == 1
    assert list(PodClaim.objects.live().values_list("pod", flat=True)) == ["stays"]


def test_a_pod_that_is_not_bound_holds_nothing(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    give_plenty(cast.acme)
    following.follow(cluster=cluster, pod=running("train", paper.container(30, 10), on=""), labels={})
    assert not PodClaim.objects.exists()


def test_a_pod_of_nobodys_namespace_says_so_until_somebody_pays(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    give_plenty(cast.globex)
    pod = running("train", paper.container(30, 10))
    pod["metadata"]["namespace"] = "other"
    row = follow(cluster, pod, team="search")
    assert (row.claim, row.problem) == (None, "Namespace other is bound to no tenant: bind it.")
    bindings.bind(principal=SYSTEM, cluster=cluster, selector={"team": "search"}, tenant=cast.globex)
    row = follow(cluster, pod, team="search")
    assert row.claim is not None
    assert (row.claim.tenant, row.problem) == (cast.globex, "")


def test_a_pod_above_the_quota_says_so_in_numbers(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    give(cast.acme, core_percent=20, memory_mib=100_000)
    row = follow(cluster, running("train", paper.container(30, 10)))
    assert row.claim is None
    assert "Core quota exceeded: requested 30 %, 20 % of 20 % available" in row.problem
    assert not Claim.objects.exists()
    assert_books_agree()


def test_a_pod_on_a_machine_that_is_not_ours_says_so(cast: Cast, cluster: Cluster) -> None:
    give_plenty(cast.acme)
    row = follow(cluster, running("train", paper.container(30, 10), on="elsewhere"))
    assert row.claim is None
    assert "elsewhere" in row.problem


def test_the_tenant_sees_its_pods_and_others_do_not(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    give_plenty(cast.acme)
    follow(cluster, running("train", paper.container(30, 10)))
    (shown,) = cast.vera.get("clusters/kube/pods/?live=true").body["results"]
    assert (shown["pod"], shown["node"], shown["claim"]) == ("train", "gpu1", str(Claim.objects.get().uid))
    assert cast.gus.get("clusters/kube/pods/").status == 404
