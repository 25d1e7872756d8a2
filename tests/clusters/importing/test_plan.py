"""Import plan of a cluster: new objects, and reasons for those that cannot be made."""

import json
from dataclasses import replace
from typing import Any

import pytest

from apps.clusters.importing.plan import Plan, Snapshot, plan, shares_by_container
from tests.clusters.formats.pods import container_with, pod
from tests.clusters.importing.populated import (
    UUID,
    gpu_manager_pod,
    gpushare_pod,
    hami_pod,
    populate,
    quota,
    running,
)


def quotas(made: Plan) -> dict[str, dict[str, int | None]]:
    found: dict[str, dict[str, int | None]] = {}
    for wanted in made.quotas:
        found.setdefault(wanted.namespace, {})[wanted.resource] = wanted.hard
    return found


def why(made: Plan) -> str:
    return "\n".join(f"{left.about}: {left.why}" for left in made.left)


def test_pods_of_all_four_are_taken_over_with_what_they_hold() -> None:
    made = plan(populate())
    held = [(wanted.name, wanted.format, wanted.places, wanted.shares[0].memory_mib) for wanted in made.pods]
    assert held == [
        ("share-0", "gpushare", (1,), 2048),
        ("shp-0", "KubeShare", (0,), 1024),
        ("hami-0", "HAMi", (0,), 3000),
        ("tc-0", "gpu-manager", (1,), 2048),
    ]
    assert made.pods[1].labels["affinity"] == "near"
    assert made.pods[1].shares[0].gpu_uuid == UUID
    assert made.pods[3].shares[0].gpu_index == 0
    assert made.left == []


def test_the_smallest_word_counts_and_what_nothing_limits_is_unlimited() -> None:
    assert quotas(plan(populate())) == {
        "red": {"core_percent": 100, "memory_mib": 59 * 256},
        "green": {"core_percent": None, "memory_mib": 20_000},
        "blue": {"core_percent": None, "memory_mib": None},
    }


def test_the_map_of_gpu_admission_counts_gpus() -> None:
    said = {"red": {"quota": {"M40": 8, "P100": 2}, "pool": ["wx"]}, "odd": {"quota": 7}}
    made = plan(Snapshot(pods=[], quota_map={"gpu_quota": json.dumps(said)}))
    assert quotas(made) == {"red": {"core_percent": 1000, "memory_mib": None}}
    assert "8 M40, 2 P100 became one sum" in why(made)
    assert "gpuquota, odd: Its quota is not a number" in why(made)


@pytest.mark.parametrize("text", ["", "{", "[]", "7"])
def test_a_map_that_cannot_be_read_is_told_of(text: str) -> None:
    assert "not a JSON object" in why(plan(Snapshot(pods=[], quota_map={"gpu_quota": text})))


def test_limits_that_kubernetes_never_counted_are_told_of() -> None:
    made = plan(Snapshot(pods=[], resource_quotas=[quota("red", **{"limits.tencent.com/vcuda-core": "100"})]))
    assert "never counted" in why(made)
    assert quotas(made) == {}


def test_several_quotas_of_a_namespace_all_count() -> None:
    said = [
        quota("red", name, **{"requests.tencent.com/vcuda-core": core}) for name, core in (("a", "300"), ("b", "1k"))
    ]
    assert quotas(plan(Snapshot(pods=[], resource_quotas=said)))["red"]["core_percent"] == 300


def test_resources_of_others_are_not_spoken_of() -> None:
    foreign = {
        "requests.cpu": "500m", "limits.memory": "64Gi", "requests.storage": "10Ti", "requests.amd.com/gpu": "4",
        "requests.nvidia.com/mig-1g.5gb": "7", "count/deployments.apps": "10", "requests.ephemeral-storage": "1Ti",
    }  # fmt: skip
    made = plan(Snapshot(pods=[], resource_quotas=[quota("red", **foreign)]))
    assert (made.left, quotas(made)) == ([], {})


PLACEHOLDER = running(pod(container_with(gpu=1), labels={"kubeshare/role": "dummyPod"}))


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (running(pod(container_with(core=30, memory=4))), "no annotation tencent.com/predicate-gpu-idx-0"),
        (running(pod(container_with(gpu=1))), "no annotation hami.io"),
        (pod(container_with(core=30, memory=4)), "on no node yet"),
        (PLACEHOLDER, "only keeps a GPU for KubeShare"),
    ],
)
def test_a_pod_that_cannot_be_taken_over_is_told_of(odd: dict[str, Any], words: str) -> None:
    made = plan(Snapshot(pods=[odd, hami_pod()]))
    assert words in why(made)
    assert [wanted.name for wanted in made.pods] == ["hami-0"]


@pytest.mark.parametrize(
    "plain", [running(pod({})), gpu_manager_pod(phase="Succeeded"), gpu_manager_pod(phase="Failed")]
)
def test_what_holds_nothing_is_not_spoken_of(plain: dict[str, Any]) -> None:
    made = plan(Snapshot(pods=[plain]))
    assert (made.pods, made.left) == ([], [])


def test_the_same_cluster_gives_the_same_plan_in_any_order() -> None:
    whole = populate()
    assert plan(replace(whole, pods=list(reversed(whole.pods)))) == plan(whole)


def test_containers_of_a_pod_are_taken_over_each_by_itself() -> None:
    said = {"tencent.com/predicate-gpu-idx-0": "0,1", "tencent.com/predicate-gpu-idx-2": "3"}
    asked = running(pod(container_with(core=200), {}, container_with(core=10, memory=1), annotations=said))
    (wanted,) = plan(Snapshot(pods=[asked])).pods
    assert [(place, name, len(shares)) for place, name, shares in shares_by_container(wanted)] == [
        (0, "c0", 2),
        (2, "c2", 1),
    ]


def hami_running(devices: str, **limits: int) -> dict[str, Any]:
    return running(pod(container_with(**limits), annotations={"hami.io/vgpu-devices-allocated": devices}))


def kubeshare_running(uuid: str, annotations: dict[str, str] | None = None, **words: str) -> dict[str, Any]:
    labels = {f"sharedgpu/{word}": value for word, value in words.items()}
    return running(pod({}, labels=labels, annotations={"sharedgpu/gpu_uuid": uuid, **(annotations or {})}))


# Running pods of the examples that HAMi, gpushare and KubeShare publish: count, percents and MiB of each GPU.
EXAMPLES: dict[str, tuple[dict[str, Any], tuple[int, int, int | None]]] = {
    "hami-share": (hami_running(f"{UUID},NVIDIA,3000,30:;", gpu=1, gpumem=3000, cores=30), (1, 30, 3000)),
    "hami-memory": (hami_running(f"{UUID},NVIDIA,3000,0:;", gpu=1, gpumem=3000), (1, 0, 3000)),
    "hami-whole": (hami_running("GPU-1,NVIDIA,24576,100:GPU-2,NVIDIA,24576,100:;", gpu=2), (2, 100, 24_576)),
    "hami-percent": (hami_running(f"{UUID},NVIDIA,9830,60:;", gpu=1, percent=40, cores=60), (1, 60, 9830)),
    # Parts of two GPUs: only new pods of that kind cannot be rewritten.
    "hami-parts-of-two": (
        hami_running("GPU-1,NVIDIA,12288,30:GPU-2,NVIDIA,12288,30:;", gpu=2, percent=50, cores=30),
        (2, 30, 12_288),
    ),
    "gpushare": (gpushare_pod(), (1, 0, 2048)),
    "kubeshare": (kubeshare_running(UUID, gpu_request="0.3", gpu_limit="1.0", gpu_mem="3073741824"), (1, 30, 2932)),
    "kubeshare-no-memory": (
        kubeshare_running(UUID, {"sharedgpu/gpu_mem": "5153960755"}, gpu_request="0.2", gpu_limit="1.0"),
        (1, 20, 4915),
    ),
    "kubeshare-whole": (kubeshare_running("GPU-1,GPU-2", gpu_request="2.0", gpu_limit="2.0"), (2, 100, None)),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_running_pods_of_the_published_examples_are_taken_over(name: str) -> None:
    asked, (count, core, memory_mib) = EXAMPLES[name]
    made = plan(Snapshot(pods=[asked]))
    assert made.left == []
    [wanted] = made.pods
    assert [(share.core_request, share.memory_mib) for share in wanted.shares] == [(core, memory_mib)] * count


def test_a_part_of_a_gpu_by_mig_is_left_in_words() -> None:
    made = plan(Snapshot(pods=[hami_running(f"{UUID}[0-1],NVIDIA,8000,0:;", gpu=1, gpumem=8000)]))
    assert "only whole NVIDIA GPUs are taken over" in why(made)


def test_gpushares_memory_is_in_the_clusters_unit() -> None:
    asked = gpushare_pod()
    asked["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_POD"] = "16276"
    [wanted] = plan(Snapshot(pods=[asked]), gpushare_unit_mib=1).pods
    assert wanted.shares[0].memory_mib == 16_276
