"""Shapes of the examples that HAMi, gpushare and KubeShare publish: each works, or is told of, in these words.

The table in docs/kubernetes.md names the examples of each shape.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from apps.clusters.admission.policy import Policy
from tests.clusters.admission.asking import mutate, validate
from tests.clusters.formats.pods import container_with, pod

Json = dict[str, Any]
CORE, MEMORY, LIMIT = "tencent.com/vcuda-core", "tencent.com/vcuda-memory", "tencent.com/vcuda-core-limit"
MODEL, UUID = "gpucloud.io/gpu-model", "gpucloud.io/gpu-uuid"
BARE = Policy(translated=frozenset({"HAMi", "gpushare", "KubeShare"}))
# A cluster of GPUs with 24 GiB, whose gpushare counted in MiB.
SET = replace(BARE, gpu_memory_mib=24_576, gpushare_unit_mib=1)
PRIORITY = "sharedgpu/priority is not followed: give the pod a PriorityClass."
GANG = {"gpucloud.io/gang": "test", "gpucloud.io/gang-minimum": "2"}
PARTS = "asks parts of 2 GPUs: ask for part of one GPU, for whole GPUs, or by a ResourceClaim with count 2"
HAMI_MIG = "nvidia.com/vgpu-mode is mig, and nvidia.com/gpumem names no profile"
PLACEMENT = "is not followed: the placement of the cluster and of its pool decides."


class Shape(NamedTuple):
    """A pod, and what becomes of it: amounts, further annotations, and what is said."""

    pod: Json
    amounts: dict[str, str] | None = None
    annotations: dict[str, str] = {}
    told: tuple[str, ...] = ()


def hami(annotations: dict[str, str] | None = None, **limits: int) -> Json:
    return pod(container_with(**limits), annotations=annotations or {})


def kubeshare(request: str, limit: str, scheduler: str = "kubeshare-scheduler", **words: str) -> Json:
    labels = {f"sharedgpu/{word}": value for word, value in words.items()}
    made = pod({}, labels={"sharedgpu/gpu_request": request, "sharedgpu/gpu_limit": limit, **labels})
    made["spec"]["schedulerName"] = scheduler
    return made


def both(resources: Json, labels: Json) -> Json:
    """Return a pod of NVIDIA's resource with KubeShare's labels, as in its comparisons."""
    return {**resources, "metadata": {**resources["metadata"], "labels": labels["metadata"]["labels"]}}


ALWAYS = {
    "hami-share": Shape(hami(gpu=1, gpumem=3000, cores=30), {CORE: "30", MEMORY: "12"}),
    "hami-memory": Shape(hami(gpu=1, gpumem=3000), {CORE: "1", MEMORY: "12"}, {LIMIT: "100"}),
    "hami-whole": Shape(hami(gpu=2), {CORE: "200"}),
    "hami-exclusive": Shape(hami(gpu=2, percent=100, cores=100), {CORE: "200"}),
    "hami-model": Shape(hami({"nvidia.com/use-gputype": "A100,V100"}, gpu=2), {CORE: "200"}, {MODEL: "A100,V100"}),
    "hami-not-model": Shape(
        hami({"nvidia.com/nouse-gputype": "1080,2080"}, gpu=2), {CORE: "200"}, {MODEL: "!1080,!2080"}
    ),
    "hami-uuid": Shape(hami({"nvidia.com/use-gpuuuid": "GPU-1,GPU-2"}, gpu=1), {CORE: "100"}, {UUID: "GPU-1,GPU-2"}),
    "hami-not-uuid": Shape(hami({"nvidia.com/nouse-gpuuuid": "GPU-1"}, gpu=2), {CORE: "200"}, {UUID: "!GPU-1"}),
    "hami-policies": Shape(
        hami({"hami.io/node-scheduler-policy": "spread", "hami.io/gpu-scheduler-policy": "binpack"}, gpu=1),
        {CORE: "100"},
        told=(f"hami.io/gpu-scheduler-policy {PLACEMENT}", f"hami.io/node-scheduler-policy {PLACEMENT}"),
    ),
    "hami-vulkan": Shape(
        hami({"hami.io/vulkan": "true"}, gpu=1, gpumem=1024, cores=30),
        {CORE: "30", MEMORY: "4"},
        told=("hami.io/vulkan is not followed: it is not known here.",),
    ),
    "hami-parts-of-two": Shape(
        hami(gpu=2, percent=50, cores=30),
        told=(f"Container c0 {PARTS}.",),
    ),
    "hami-mig": Shape(
        hami({"nvidia.com/vgpu-mode": "mig"}, gpu=2, gpumem=8000),
        told=(f"{HAMI_MIG}: ask for an instance by its profile, as nvidia.com/mig-2g.20gb: 1, or leave",),
    ),
    "hami-index": Shape(
        hami({"nvidia.com/use-gpuindexes": "0,1"}, gpu=1),
        told=("nvidia.com/use-gpuindexes is set: an index means another GPU on each node",),
    ),
    "kubeshare-share": Shape(
        kubeshare("0.3", "1.0", gpu_mem="3073741824", priority="100"),
        {CORE: "30", MEMORY: "12"},
        {LIMIT: "100"},
        told=(PRIORITY,),
    ),
    "kubeshare-whole": Shape(kubeshare("2.0", "2.0"), {CORE: "200"}),
    "kubeshare-model": Shape(
        kubeshare("1.0", "1.0", gpu_model="Tesla-V100-PCIE-32GB"), {CORE: "100"}, {MODEL: "=Tesla-V100-PCIE-32GB"}
    ),
    "kubeshare-gang": Shape(kubeshare("1.0", "1.0", group_name="test", min_available="2"), {CORE: "100"}, GANG),
    "kubeshare-beside-nvidia": Shape(
        both(hami(gpu=2), kubeshare("2.0", "2.0", group_name="test", min_available="2", priority="100")),
        {CORE: "200"},
        GANG,
        told=(PRIORITY,),
    ),
    "kubeshare-not-whole": Shape(
        kubeshare("2", "2.5"), told=("more than one GPU is asked in whole numbers, both the same.",)
    ),
    "kubeshare-more-than-its-limit": Shape(
        kubeshare("0.5", "0.3"), told=("sharedgpu/gpu_request 0.5 is more than sharedgpu/gpu_limit 0.3.",)
    ),
}
# These depend on the settings: as `BARE`, then as `SET`.
UNKNOWN = "percent of a GPU's memory, and which GPU it will be is not known yet"
DEPENDING = {
    "hami-percent": (
        Shape(hami(gpu=1, percent=40, cores=60), told=(f"asks 40 {UNKNOWN}",)),
        Shape(hami(gpu=1, percent=40, cores=60), {CORE: "60", MEMORY: "38"}),
    ),
    "gpushare-gib": (
        Shape(pod(container_with(aliyun=2)), {CORE: "1", MEMORY: "8"}, {LIMIT: "100"}),
        Shape(pod(container_with(aliyun=2048)), {CORE: "1", MEMORY: "8"}, {LIMIT: "100"}),
    ),
    "gpushare-mib": (
        Shape(pod(container_with(aliyun=16276)), told=("If the cluster counts in MiB, set GPUSHARE_UNIT_MIB=1",)),
        Shape(pod(container_with(aliyun=16276)), {CORE: "1", MEMORY: "64"}, {LIMIT: "100"}),
    ),
    "kubeshare-no-memory": (
        Shape(kubeshare("0.2", "1.0"), told=(f"asks 20 {UNKNOWN}",)),
        Shape(kubeshare("0.2", "1.0"), {CORE: "20", MEMORY: "19"}, {LIMIT: "100"}),
    ),
    "kubeshare-group": (
        Shape(
            kubeshare("0.5", "1.0", group_name="test", group_headcount="10", group_threshold="0.2"),
            told=(f"asks 50 {UNKNOWN}",),
        ),
        Shape(
            kubeshare("0.5", "1.0", group_name="test", group_headcount="10", group_threshold="0.2"),
            {CORE: "50", MEMORY: "48"},
            {LIMIT: "100", **GANG},
        ),
    ),
}
CASES = [
    *(pytest.param(shape, policy, id=f"{name}-{which}") for name, shape in ALWAYS.items()
      for which, policy in (("bare", BARE), ("set", SET))),
    *(pytest.param(shape, policy, id=f"{name}-{which}") for name, shapes in DEPENDING.items()
      for shape, (which, policy) in zip(shapes, (("bare", BARE), ("set", SET)), strict=True)),
]  # fmt: skip


def said_by(response: Json) -> str:
    return " ".join([response.get("status", {}).get("message", ""), *response.get("warnings", ())])


@pytest.mark.parametrize(("shape", "policy"), CASES)
def test_each_example_works_or_is_told_of(shape: Shape, policy: Policy) -> None:
    made = mutate(shape.pod, policy)
    response = validate(made, policy)
    found = made["spec"]["containers"][0].get("resources", {}).get("limits")
    before = shape.pod["metadata"].get("annotations") or {}
    added = {key: value for key, value in (made["metadata"].get("annotations") or {}).items() if key not in before}
    if shape.amounts is None:
        assert made is shape.pod
        assert shape.told, "silently"
    else:
        assert (found, added, response["allowed"]) == (shape.amounts, shape.annotations, True)
        assert made["spec"].get("schedulerName") != "kubeshare-scheduler"
    assert all(words in said_by(response) for words in shape.told)
    assert bool(said_by(response).strip()) == bool(shape.told)
    # With the setting, nothing is lost by a pod that runs.
    refused = validate(made, replace(policy, refuse_unmet=True))
    assert refused["allowed"] == (not shape.told)
    assert all(words in said_by(refused) for words in shape.told)


def test_sharepods_of_the_first_kubeshare_are_accepted() -> None:
    words = {"kubeshare/gpu_request": "0.5", "kubeshare/gpu_limit": "1.0", "kubeshare/gpu_mem": "3145728000"}
    sharepod = {**pod({}, annotations=words), "kind": "SharePod"}
    assert validate(mutate(sharepod, BARE), BARE) == {"uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "allowed": True}


@pytest.mark.parametrize("name", ["huawei.com/Ascend910B3", "cambricon.com/vmlu"])
def test_other_devices_are_none_of_ours(name: str) -> None:
    asked = pod({"resources": {"limits": {name: "1"}}})
    assert mutate(asked, BARE) is asked
    assert "warnings" not in validate(asked, BARE)


def test_the_page_has_the_words() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    table = page[page.index("### Examples of the other sharers") :].partition("\n## ")[0]
    for words in (
        PARTS,
        HAMI_MIG,
        "nvidia.com/use-gpuindexes is set: an index means another GPU on each node",
        "is not followed: the placement of the cluster and of its pool decides",
        UNKNOWN,
        PRIORITY.rstrip("."),
    ):
        assert words in table
    assert "silent" not in table.lower()
