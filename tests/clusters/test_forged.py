"""Words of a pod that nobody but a tenant wrote take no capacity, and what does take some is listed with its pod."""

from datetime import timedelta
from typing import Any

from django.utils import timezone

from apps.clusters.importing import following, taking
from apps.clusters.importing.plan import Snapshot, plan
from apps.clusters.models import Cluster, PodClaim, PodHold
from apps.clusters.services import outside
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim
from tests.cast import Cast, Machine, give_plenty
from tests.clusters import paper
from tests.clusters.formats.pods import container_with, pod
from tests.clusters.importing.populated import running as bound
from tests.clusters.test_holding import follow, running
from tests.clusters.test_outside import cluster, free, machine

__all__ = ["cluster", "machine"]
Json = dict[str, Any]


def kubeshare_pods(uuid: str) -> list[Json]:
    """Return pods that ask no resource and say that they are on a GPU, in all of KubeShare's words."""
    visible = {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": uuid}]}
    v1 = {"kubeshare/gpu_request": "0.9", "kubeshare/gpu_limit": "1.0", "kubeshare/gpu_mem": "1048576"}
    v2 = {"sharedgpu/gpu_request": "0.9", "sharedgpu/gpu_limit": "1.0"}
    made = [
        pod({}, labels=v2, annotations={"sharedgpu/gpu_uuid": uuid}),
        pod(visible, labels=v2),
        pod({}, annotations={**v1, "kubeshare/gpu_uuid": uuid}),
        pod(visible, annotations=v1),
        pod({}, annotations={**{key.replace("kubeshare", "gemini"): v1[key] for key in v1}, "gemini/gpu_uuid": uuid}),
    ]
    for place, one in enumerate(made):
        one["metadata"] |= {"name": f"forged-{place}", "uid": f"uid-forged-{place}", "namespace": "ml"}
        bound(one)
    return made


def test_a_pod_that_only_says_it_is_on_a_gpu_takes_nothing_there(
    cast: Cast, cluster: Cluster, machine: Machine
) -> None:
    give_plenty(cast.acme)
    whole = free(machine)
    for forged in kubeshare_pods(machine.gpu().uuid):
        row = follow(cluster, forged)
        assert (row.claim, row.container, row.node_name) == (None, "c0", "gpu1")
        assert "counts once an import" in row.problem
    assert free(machine) == whole
    assert not PodHold.objects.exists()
    listed = cast.olga.get("clusters/kube/pods/").body["results"]
    assert {row["pod"] for row in listed} == {f"forged-{place}" for place in range(5)}


def test_what_such_a_pod_held_before_is_given_back(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    forged, *_ = kubeshare_pods(machine.gpu().uuid)
    outside.keep(cluster=cluster, pod_uid="uid-forged-0", parts={machine.gpu().pk: (90, 1)})
    assert free(machine)[0] == 10
    follow(cluster, forged)
    assert free(machine)[0] == 100


def test_a_pod_that_an_import_took_goes_on_counting(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    give_plenty(cast.acme)
    taken, *_ = kubeshare_pods(machine.gpu().uuid)
    follow(cluster, taken)
    taking.take(principal=SYSTEM, cluster=cluster, plan=plan(Snapshot(pods=[taken])))
    for _ in range(2):
        row = follow(cluster, taken)
        assert row.claim is not None
        assert (row.claim.core_request, row.problem) == (90, "")
    assert free(machine)[0] == 10
    assert Claim.objects.count() == 1


def test_everything_that_is_held_outside_has_a_row_with_its_pod(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    said = {"ALIYUN_COM_GPU_MEM_IDX": "0"}
    gpushare = bound(pod(container_with(aliyun=2), name="share", annotations=said))
    uuid = {"hami.io/vgpu-devices-allocated": f"{machine.gpu().uuid},NVIDIA,3000,20:;"}
    hami = bound(pod(container_with(gpu=1, gpumem=3000, cores=20), name="hami", annotations=uuid))
    for one in (gpushare, hami, running("train", paper.container(30, 10))):
        one["metadata"]["namespace"] = "nobodys"
        following.follow(cluster=cluster, pod=one, labels={})
    held = set(PodHold.objects.values_list("pod_uid", flat=True))
    assert held == {"uid-share", "uid-hami", "uid-train"}
    assert set(PodClaim.objects.live().exclude(problem="").values_list("pod_uid", flat=True)) == held


def test_a_promise_that_lasts_has_a_row_until_it_ends(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    chosen = running("chosen", paper.container(10, 1))
    chosen["spec"].pop("nodeName")
    outside.keep(cluster=cluster, pod_uid="uid-chosen", parts={machine.gpu().pk: (10, 256)})
    following.forget_promises(cluster=cluster, pods_there=[chosen])
    assert not PodClaim.objects.exists()
    PodHold.objects.update(since=timezone.now() - timedelta(minutes=2))
    following.forget_promises(cluster=cluster, pods_there=[chosen])
    row = PodClaim.objects.get()
    assert (row.pod, row.node_name, row.gpu_indexes, row.claim) == ("chosen", "gpu1", [0], None)
    assert "promised to it since" in row.problem
    chosen["metadata"]["annotations"] = {}
    following.forget_promises(cluster=cluster, pods_there=[chosen])
    assert not PodHold.objects.exists()
    assert not PodClaim.objects.exists()


def test_the_watch_counts_gpushares_memory_in_the_clusters_unit(
    cast: Cast, cluster: Cluster, machine: Machine, settings: Any
) -> None:
    give_plenty(cast.acme)
    settings.GPUSHARE_UNIT_MIB = 1
    said = {"ALIYUN_COM_GPU_MEM_IDX": "0", "ALIYUN_COM_GPU_MEM_POD": "16276"}
    share = bound(pod(container_with(aliyun=16276), name="share", namespace="ml", annotations=said))
    row = follow(cluster, share)
    assert (row.problem, row.memory_mib) == ("", 16_276)
