"""Pods with malicious values: each is skipped or refused with a message, and the others are recorded."""

import json
import typing
from typing import Any

import pytest
from django.core.management import call_command

from apps.clusters.formats import kubeshare
from apps.clusters.formats.asks import Unreadable
from apps.clusters.kube.client import Client
from apps.clusters.kube.objects import Metadata, Namespace
from apps.clusters.kube.reflector import Observation
from apps.clusters.management.commands import sharepods
from apps.clusters.models import Cluster, PodClaim
from apps.clusters.services import bindings, clusters
from apps.clusters.sharepods.controller import SharePods
from apps.clusters.watching import Watched
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim
from tests.cast import Cast, Machine, give_plenty
from tests.clusters import paper
from tests.clusters.kubeconfigs import kubeconfig

Json = dict[str, Any]
SHARE = {"kubeshare/gpu_request": "0.5", "kubeshare/gpu_limit": "0.5", "kubeshare/gpu_mem": "1048576"}
INDEX = "tencent.com/predicate-gpu-idx-0"


@pytest.fixture
def watched(cast: Cast) -> Watched:
    Machine("gpu1", cast.pool)
    give_plenty(cast.acme)
    made = clusters.connect(principal=SYSTEM, name="kube", pool=cast.pool, kubeconfig=kubeconfig())
    bindings.bind(principal=SYSTEM, cluster=made, namespace="ml", tenant=cast.acme)
    watched = Watched(Cluster.objects.get())
    watched.take(Observation("namespaces", (Namespace(Metadata(name="ml")),), whole=True))
    return watched


@pytest.mark.parametrize(
    ("asks", "annotations"),
    [
        (paper.container(), {"kubeshare/gpu_request": "0", "kubeshare/gpu_limit": "0"}),
        (paper.container(30, 10), {INDEX: "99999999999999"}),
        (paper.container(30, 10), {INDEX: "0,9223372036854775808"}),
        (paper.container(30, 10), {INDEX: "0", "gpucloud.io/vcuda-core": "\0"}),
        (paper.container(), {**SHARE, "kubeshare/gpu_uuid": "\0"}),
    ],
)
def test_the_watch_goes_on_after_a_pod_with_odd_words(
    watched: Watched, asks: Json, annotations: dict[str, str]
) -> None:
    odd = paper.pod("odd", asks, annotations=annotations, on="gpu1")
    good = paper.pod("good", paper.container(30, 10), annotations={INDEX: "1"}, on="gpu1")
    watched.take(Observation("pods", (odd, good)))
    assert PodClaim.objects.get(pod="good").claim is not None


def sharepod(name: str, **words: str) -> Json:
    annotations = {**SHARE, **{f"kubeshare/{key}": value for key, value in words.items()}}
    meta = {"name": name, "namespace": "ml", "uid": f"uid-{name}", "creationTimestamp": name}
    return {"metadata": {**meta, "annotations": annotations}, "spec": {"containers": [{"name": "c", "image": "c"}]}}


class Kube:
    """An API server's SharePods and pods."""

    def __init__(self, things: list[Json], pods: list[Json]) -> None:
        self.things, self.pods, self.told = things, pods, dict[str, Json]()

    def list(self, path: str, **query: str) -> tuple[list[bytes], str]:
        return [json.dumps(item).encode() for item in (self.things if path.endswith("sharepods") else self.pods)], "1"

    def get(self, path: str) -> Json:
        return {"metadata": {"labels": {}}}

    def patch(self, path: str, body: Json) -> None:
        self.told[path.split("/")[-2]] = body["status"]


def phases_after_check(*things: Json, pods: tuple[Json, ...] = ()) -> dict[str, Json]:
    kube = Kube(list(things), list(pods))
    SharePods(Cluster.objects.get(), typing.cast(Any, kube)).reconcile_all()
    return kube.told


@pytest.mark.parametrize("words", [{"GPUID": "x" * 64}, {"sched_affinity": "\0"}])
def test_a_sharepod_with_odd_words_hears_so_and_the_next_is_kept(watched: Watched, words: dict[str, str]) -> None:
    told = phases_after_check(sharepod("a-odd", **words), sharepod("b-good"))
    assert told["a-odd"]["Phase"] == "Failed"
    assert told["b-good"]["Phase"] == "Pending"


@pytest.mark.parametrize("name", ["", "x" * 64, 7])
def test_a_sharepod_whose_container_no_agent_could_be_told_has_no_claim(watched: Watched, name: object) -> None:
    odd = sharepod("a-odd")
    odd["spec"]["containers"][0]["name"] = name
    told = phases_after_check(odd, sharepod("b-good"))
    assert told["a-odd"]["Phase"] == "Failed"
    assert "name of 1 to 63 characters" in told["a-odd"]["Message"]
    assert list(Claim.objects.values_list("pod__name", flat=True)) == ["b-good"]


def test_a_gpuid_that_is_too_long_is_named() -> None:
    with pytest.raises(Unreadable, match="GPUID has more than 63 characters"):
        kubeshare.gpu_id(sharepod("odd", GPUID="x" * 64))


def test_a_pod_of_another_namespace_does_not_end_a_sharepod(watched: Watched) -> None:
    """Anybody may set a label; the uid in it is no secret."""
    phases_after_check(sharepod("mine"))
    forged = paper.pod("mine", paper.container(), phase="Failed")
    forged["metadata"] |= {"namespace": "other", "labels": {"gpucloud.io/sharepod": "uid-mine"}}
    assert phases_after_check(sharepod("mine"), pods=(forged,))["mine"]["Phase"] == "Pending"
    assert Cluster.objects.get().sharepods.get().ended_at is None


def test_a_cluster_whose_credentials_cannot_be_used_holds_up_no_other(
    cast: Cast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """This is no pod of a cluster: a cluster that is reached from within cannot be reached from here."""
    Machine("gpu1", cast.pool)
    give_plenty(cast.acme)
    clusters.connect(principal=SYSTEM, name="a-odd", pool=cast.pool, in_cluster=True)
    good = clusters.connect(principal=SYSTEM, name="b-good", pool=cast.pool, kubeconfig=kubeconfig())
    bindings.bind(principal=SYSTEM, cluster=good, namespace="ml", tenant=cast.acme)
    kube = Kube([sharepod("mine")], [])
    reach = lambda config: Client(config) if config is None else kube  # noqa: E731
    monkeypatch.setattr(sharepods, "Client", reach)
    call_command("sharepods", "--once")
    assert "cluster a-odd could not be reconciled" in caplog.text
    assert kube.told["mine"]["Phase"] == "Pending"
