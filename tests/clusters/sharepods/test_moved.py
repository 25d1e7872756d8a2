"""A SharePod whose claim was preempted or moved: its pod ends, and is recreated where the claim is."""

import json
import typing
from typing import Any

import pytest
import yaml
from django.db import transaction
from django.utils import timezone

from apps.clusters.importing import following
from apps.clusters.kube.client import Client, Refused
from apps.clusters.kube.reflector import Observation
from apps.clusters.models import Cluster, PodClaim, PodHold
from apps.clusters.services import bindings, clusters
from apps.clusters.sharepods.controller import SharePods
from apps.clusters.sharepods.watching import WatchedSharePods
from apps.nodes.models import Gpu
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.lifecycle import end_assignments
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import Cast, Machine, assert_books_agree, give_plenty
from tests.clusters.kubeconfigs import kubeconfig

Json = dict[str, Any]


class Kube:
    """An API server with one SharePod, and its pods, which end when the test says so."""

    def __init__(self) -> None:
        words = {"kubeshare/gpu_request": "0.5", "kubeshare/gpu_limit": "0.5", "kubeshare/gpu_mem": str(1 << 30)}
        meta = {"name": "train", "namespace": "ml", "uid": "shp", "creationTimestamp": "1", "annotations": words}
        self.sharepods: list[Json] = [{"metadata": meta, "spec": {"containers": [{"name": "cuda", "image": "cuda"}]}}]
        self.pods: list[Json] = []
        self.made = self.listed = 0

    def list(self, path: str, **query: str) -> tuple[list[bytes], str]:
        self.listed += 1
        return [
            json.dumps(item).encode() for item in (self.sharepods if path.endswith("sharepods") else self.pods)
        ], "1"

    def get(self, path: str) -> Json:
        return {"metadata": {"labels": {}}}

    def find(self, path: str) -> Json | None:
        assert path.endswith("/namespaces/ml/sharepods/train")
        return next(iter(self.sharepods), None)

    def post(self, path: str, body: Json) -> bytes:
        if self.pods:
            raise Refused(409, "AlreadyExists", "train")
        self.made += 1
        self.pods = [{**body, "metadata": {**body["metadata"], "uid": f"pod-{self.made}"}, "status": {}}]
        return json.dumps(self.pods[0]).encode()

    def delete(self, path: str, *, uid: str) -> None:
        if self.pods[0]["metadata"]["uid"] != uid:
            raise Refused(409, "Conflict", "the UID in the precondition is another")
        self.pods[0]["metadata"]["deletionTimestamp"] = "2"

    def patch(self, path: str, body: Json) -> None:
        self.sharepods[0]["status"] = body["status"]

    def gpu(self) -> str:
        return str(self.pods[0]["metadata"]["annotations"]["tencent.com/predicate-gpu-idx-0"])

    def ending(self) -> bool:
        return "deletionTimestamp" in self.pods[0]["metadata"]


@pytest.fixture
def machine(cast: Cast) -> Machine:
    give_plenty(cast.acme)
    return Machine("gpu1", cast.pool, gpus=2)


@pytest.fixture
def cluster(cast: Cast, machine: Machine) -> Cluster:
    made = clusters.connect(principal=SYSTEM, name="kube", pool=cast.pool, kubeconfig=kubeconfig())
    bindings.bind(principal=SYSTEM, cluster=made, namespace="ml", tenant=cast.acme)
    return made


@pytest.fixture
def kube(cast: Cast, cluster: Cluster, machine: Machine) -> Kube:
    """Run the SharePod on GPU 0."""
    kube = Kube()
    run_controller(cluster, kube)
    run_round(cast.pool)
    run_controller(cluster, kube)
    machine.obey()
    assert (kube.gpu(), kube.ending()) == ("0", False)
    return kube


def run_controller(cluster: Cluster, kube: Kube) -> None:
    SharePods(cluster, typing.cast(Client, kube)).reconcile_all()


@transaction.atomic
def preempt() -> None:
    """Requeue its claim, and make its GPU unavailable."""
    end_assignments(Claim.objects.select_for_update().get(), preempt_at=timezone.now())
    Gpu.objects.filter(index=0).update(unhealthy="XID 79")


def test_the_pod_of_a_preempted_claim_ends_and_is_made_where_the_claim_is(
    cast: Cast, cluster: Cluster, machine: Machine, kube: Kube
) -> None:
    preempt()
    machine.obey()
    run_controller(cluster, kube)
    assert kube.ending()
    assert "must end first" in kube.sharepods[0]["status"]["Message"]
    run_round(cast.pool)
    run_controller(cluster, kube)
    assert kube.made == 1
    # Its end does not end the claim.
    kube.pods = []
    following.end(cluster=cluster, pod_uid="pod-1")
    run_controller(cluster, kube)
    claim = Claim.objects.get()
    assert (claim.state, kube.gpu(), kube.ending()) == ("assigned", "1", False)
    assert list(PodClaim.objects.values_list("pod_uid", "claim")) == [("pod-2", claim.pk)]
    run_controller(cluster, kube)
    assert (kube.made, kube.ending()) == (2, False)
    assert_books_agree()


def test_a_pod_that_is_ending_does_not_take_the_claim_along(
    cast: Cast, cluster: Cluster, machine: Machine, kube: Kube
) -> None:
    """The watch of pods sees the old pod, which names the claim, while the claim is elsewhere already."""
    preempt()
    machine.obey()
    run_round(cast.pool)
    run_controller(cluster, kube)
    following.follow(cluster=cluster, pod=kube.pods[0], labels={})
    row = PodClaim.objects.get(pod_uid="pod-1")
    assert row.claim is None
    assert "elsewhere" in row.problem
    # It still uses its GPU.
    assert Gpu.objects.get(index=0).core_outside == 50
    following.end(cluster=cluster, pod_uid="pod-1")
    assert Claim.objects.get().state == "assigned"
    assert not PodHold.objects.exists()


def test_a_view_that_is_old_ends_no_pod_that_came_since(cluster: Cluster, kube: Kube) -> None:
    """The SharePod was removed and made again, and its new pod has the old one's name."""
    seen = kube.pods
    kube.sharepods = []
    kube.pods = [{**seen[0], "metadata": {**seen[0]["metadata"], "uid": "pod-2"}}]
    SharePods(cluster, typing.cast(Client, kube)).reconcile([], seen)
    assert not kube.ending()
    assert Claim.objects.get().state in ("releasing", "released")


def test_a_cluster_is_told_which_one_of_the_name_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes | None] = []

    def answer(client: Client, method: str, path: str, query: Json, body: bytes | None = None) -> bytes:
        sent.append(body)
        return b"{}"

    monkeypatch.setattr(Client, "_answer", answer)
    client = Client(yaml.safe_load(kubeconfig()))
    client.delete("/api/v1/namespaces/ml/pods/train", uid="pod-1")
    client.delete("/api/v1/namespaces/ml/pods/train?gracePeriodSeconds=0")
    assert sent[0] is not None
    assert json.loads(sent[0]) == {"preconditions": {"uid": "pod-1"}}
    # With a body, the query's parameters would not count.
    assert sent[1] is None


def test_what_is_watched_is_not_listed_again(cluster: Cluster, kube: Kube) -> None:
    watch, before = WatchedSharePods(cluster), kube.listed
    watch._controller = SharePods(cluster, typing.cast(Client, kube))
    watch.take(Observation("sharepods", tuple(kube.sharepods), whole=True))
    kube.pods[0]["status"] = {"phase": "Running"}
    watch.hear(Observation("pods", tuple(kube.pods), whole=True))
    watch.step()
    assert kube.sharepods[0]["status"]["Phase"] == "Running"
    watch.hear(Observation("sharepods", (kube.sharepods.pop(),), gone=True))
    watch.step()
    assert kube.ending()
    assert kube.listed == before


def test_a_cluster_without_the_kind_has_none_and_one_that_is_not_known_is_left_alone(
    cluster: Cluster, kube: Kube
) -> None:
    watch = WatchedSharePods(cluster)
    watch._controller = SharePods(cluster, typing.cast(Client, kube))
    watch.hear(Observation("pods", tuple(kube.pods), whole=True))
    watch.step()
    assert not kube.ending()
    kube.sharepods = []
    watch.hear(Observation("sharepods", (), whole=True))
    watch.step()
    assert kube.ending()
