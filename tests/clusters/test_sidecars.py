"""Sidecars with GPUs (init containers that last): asked, placed, charged and taken over like containers."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from apps.clusters.admission.policy import Policy
from apps.clusters.extender import predicates
from apps.clusters.formats import format_of, gpu_manager, hami
from apps.clusters.formats.asks import Share
from apps.clusters.models import Cluster, PodClaim
from apps.clusters.services import bindings, clusters
from apps.clusters.watches import Watches
from apps.clusters.watching import Watched
from apps.quotas.principals import SYSTEM
from tests.cast import Cast, Machine, assert_books_agree, give_plenty
from tests.clusters.admission.asking import mutate, validate
from tests.clusters.cluster_objects import CORE, MEMORY, add_namespace, add_node, placement_of, remove
from tests.clusters.control_plane import ControlPlane
from tests.clusters.formats.pods import container_with, pod
from tests.clusters.paper import Paper, container, node, request
from tests.clusters.paper import pod as paper_pod
from tests.clusters.test_watches import until

Json = dict[str, Any]
INDEX = "tencent.com/predicate-gpu-idx-"
SIDECAR = {"restartPolicy": "Always"}


def with_inits(thing: Json, *inits: Json) -> Json:
    """Return the pod with these init containers."""
    thing["spec"]["initContainers"] = [{"name": f"i{place}", **one} for place, one in enumerate(inits)]
    return thing


def test_its_index_follows_those_of_the_containers() -> None:
    running = with_inits(pod(container_with(core=30, memory=4)), {}, {**SIDECAR, **container_with(core=20, memory=2)})
    running["metadata"]["annotations"] = {f"{INDEX}0": "1", f"{INDEX}1": "0"}
    assert gpu_manager.holds(running) == (
        Share("c0", 30, 30, 1024, gpu_index=1),
        Share("i1", 20, 20, 512, gpu_index=0),
    )


def test_one_for_which_gpu_admission_chose_nothing_does_not_hide_the_containers_share() -> None:
    running = with_inits(pod(container_with(core=30, memory=4)), {**SIDECAR, **container_with(core=20, memory=2)})
    running["metadata"]["annotations"] = {f"{INDEX}0": "1"}
    assert gpu_manager.holds(running) == (Share("c0", 30, 30, 1024, gpu_index=1),)


def test_a_pod_of_which_only_a_sidecar_asks_has_a_format() -> None:
    assert format_of(with_inits(pod({}), {**SIDECAR, **container_with(core=20, memory=2)})) is gpu_manager
    assert format_of(with_inits(pod({}), container_with(core=20, memory=2))) is None


def test_hamis_sidecar_has_not_given_its_share_back() -> None:
    said = "GPU-1,NVIDIA,100,0:;GPU-1,NVIDIA,2000,10:;GPU-1,NVIDIA,5000,40:;"
    running = with_inits(pod({}, annotations={hami.ALLOCATED: said}), {}, SIDECAR)
    assert hami.holds(running) == (
        Share("i1", 10, 10, 2000, gpu_uuid="GPU-1"),
        Share("c0", 40, 40, 5000, gpu_uuid="GPU-1"),
    )


@pytest.mark.parametrize("whole", [{}, container_with(gpu=1, gpumem=3000, cores=30)])
def test_the_webhooks_rewrite_and_accept_it(whole: Json) -> None:
    policy = Policy(translated=frozenset({"HAMi"}), default_memory_mib=1024, library_directory="/opt/gpucloud")
    asked = {**SIDECAR, **container_with(gpu=1, gpumem=1000, cores=10)}
    made = mutate(with_inits(pod(whole), {"image": "busybox"}, asked), policy)
    fetch, sidecar = made["spec"]["initContainers"]
    assert sidecar["resources"]["limits"] == {CORE: "10", MEMORY: "4"}
    assert (sidecar["restartPolicy"], sidecar["env"][0]["name"]) == ("Always", "LD_PRELOAD")
    assert fetch == {"name": "i0", "image": "busybox"}
    assert validate(made, policy)["allowed"]


def test_one_that_ends_is_refused_with_what_to_do_also_if_nothing_else_asks() -> None:
    for containers in ((container_with(core=30, memory=4),), ({},)):
        refused = validate(with_inits(pod(*containers), container_with(core=10, memory=1)))
        assert not refused["allowed"]
        assert "Ask in a container or in a sidecar (restartPolicy: Always)" in refused["status"]["message"]


def placed(asked: Json, **options: Any) -> Json:
    """Let the extender place the pod on two GPUs; return its annotations."""
    paper = Paper([node("a", 200, 192)], [asked])
    body = request(asked, paper.nodes)
    said = json.loads(predicates.answer(paper.extended(**options), body))
    assert said["Error"] == ""
    annotations: Json = paper.pods["p"]["metadata"]["annotations"]
    return {key: value for key, value in annotations.items() if key.startswith(INDEX)}


def test_the_extender_places_it_after_the_containers() -> None:
    def asked() -> Json:
        return with_inits(paper_pod("p", container(60, 10)), {**SIDECAR, **container(60, 10, name="logs")}, {})

    assert placed(asked()) == {f"{INDEX}0": "0", f"{INDEX}1": "1"}
    assert placed(asked(), strict=True) == {f"{INDEX}0": "0"}, "gpu-admission knows none"


@pytest.fixture
def watches(real_cast: Cast, control_plane: ControlPlane) -> Iterator[Watches]:
    """Watch a real cluster with one node of two GPUs."""
    client = control_plane.client()
    add_node(client, "gpu1", gpus=2, units=96)
    add_namespace(client, "ml")
    give_plenty(real_cast.acme)
    Machine("gpu1", real_cast.pool, gpus=2)
    made: Cluster = clusters.connect(
        principal=SYSTEM, name="kube", pool=real_cast.pool, kubeconfig=control_plane.kubeconfig()
    )
    bindings.bind(principal=SYSTEM, cluster=made, namespace="ml", tenant=real_cast.acme)
    it = Watches(Watched)
    yield it
    remove(client, "ml", "train")
    it.stop()


@pytest.mark.control_plane
@pytest.mark.serial
@pytest.mark.timeout(300)
def test_a_real_scheduler_binds_it_and_each_gets_its_claim(watches: Watches, control_plane: ControlPlane) -> None:
    client = control_plane.client()
    limits = [{"limits": {CORE: core, MEMORY: "10"}} for core in ("60", "60")]
    spec = {
        "containers": [{"name": "main", "image": "cuda", "resources": limits[0]}],
        "initContainers": [
            {"name": "fetch", "image": "busybox"},
            {"name": "metrics", "image": "cuda", "resources": limits[1], **SIDECAR},
        ],
    }
    client.post("/api/v1/namespaces/ml/pods", {"metadata": {"name": "train"}, "spec": spec})
    assert placement_of(client, "ml", "train") == ("gpu1", "0")
    until(watches, lambda: PodClaim.objects.live().filter(claim__isnull=False).count() == 2)
    rows = PodClaim.objects.order_by("container_index").values_list("container", "gpu_indexes", "claim__core_request")
    assert list(rows) == [("main", [0], 60), ("metrics", [1], 60)]
    assert_books_agree()
