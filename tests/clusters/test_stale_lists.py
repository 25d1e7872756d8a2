"""A list of pods is outdated when it is used: a missing pod is looked up before its share ends."""

import typing
from typing import Any

import msgspec
import pytest

from apps.clusters.importing import following
from apps.clusters.kube.client import Client, Refused, Unreachable
from apps.clusters.kube.objects import Namespace
from apps.clusters.kube.reflector import Observation
from apps.clusters.models import Cluster, PodClaim
from apps.clusters.watching import Watched
from apps.scheduling.models import Claim
from tests.cast import Cast, Machine, give_plenty
from tests.clusters import paper
from tests.clusters.test_holding import cluster, machine, running

__all__ = ["cluster", "machine"]
Json = dict[str, Any]


class Kube:
    """The client's methods that the watch uses after its lists. `away`: it answers nothing."""

    def __init__(self, *pods: Json) -> None:
        self.pods = {f"/api/v1/namespaces/ml/pods/{pod['metadata']['name']}": pod for pod in pods}
        self.away = False

    def find(self, path: str) -> Json | None:
        if self.away:
            raise Unreachable("the API server does not answer")
        return self.pods.get(path)

    def version(self) -> str:
        return "v1.36.2"


@pytest.fixture
def pods(cast: Cast, cluster: Cluster, machine: Machine) -> list[Json]:
    """Create two pods with a share each; they were recorded while the list was being read."""
    give_plenty(cast.acme)
    made = [running(name, paper.container(30, 10)) for name in ("new", "gone")]
    for pod in made:
        following.follow(cluster=cluster, pod=pod, labels={})
    return made


def make_watch(cluster: Cluster, kube: Kube) -> Watched:
    """Return a watch with an empty list of pods still to come."""
    watch = Watched(cluster)
    watch.client = typing.cast(Client, kube)
    namespace = msgspec.convert({"metadata": {"name": "ml"}}, Namespace)
    watch.take(Observation("namespaces", (namespace,), whole=True))
    return watch


def live() -> list[str]:
    return list(PodClaim.objects.live().order_by("pod").values_list("pod", flat=True))


def test_a_pod_that_came_after_the_list_keeps_its_share(cluster: Cluster, pods: list[Json]) -> None:
    make_watch(cluster, Kube(pods[0])).take(Observation("pods", (), whole=True))
    assert live() == ["new"]
    assert Claim.objects.get(name="ml/new").state == "assigned"
    assert Claim.objects.get(name="ml/gone").state == "releasing"


def test_a_pod_that_is_over_or_whose_name_is_anothers_is_gone(cluster: Cluster, pods: list[Json]) -> None:
    pods[0]["status"]["phase"] = "Failed"
    pods[1]["metadata"] = {**pods[1]["metadata"], "uid": "uid-of-the-next"}
    make_watch(cluster, Kube(*pods)).take(Observation("pods", (), whole=True))
    assert live() == []


def test_of_a_cluster_that_does_not_answer_nothing_ends_until_it_does(cluster: Cluster, pods: list[Json]) -> None:
    kube = Kube(pods[0])
    kube.away = True
    watch = make_watch(cluster, kube)
    watch.take(Observation("pods", (), whole=True))
    assert live() == ["gone", "new"]
    kube.away = False
    watch.retry()
    assert live() == ["new"]


def test_who_is_stopped_ends_nothing(cluster: Cluster, pods: list[Json]) -> None:
    """It leads no longer; one that hangs in a long list continues for a while."""
    watch = make_watch(cluster, Kube())
    watch._stopped.set()
    watch.take(Observation("pods", (pods[0],), whole=True))
    assert live() == ["gone", "new"]


def test_one_object_is_found_or_not_and_a_refusal_is_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client.__new__(Client)

    def refuse(status: int) -> Any:
        def answer(*_: Any, **__: Any) -> bytes:
            raise Refused(status, "No", "no")

        return answer

    monkeypatch.setattr(Client, "_answer", refuse(404))
    assert client.find("/api/v1/namespaces/ml/pods/new") is None
    monkeypatch.setattr(Client, "_answer", refuse(403))
    with pytest.raises(Refused):
        client.find("/api/v1/namespaces/ml/pods/new")
