"""Resources that the mutating webhook adds to a pod; a second call adds nothing."""

from dataclasses import replace
from typing import Any

import pytest
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured

from apps.clusters.admission.policy import Policy
from tests.clusters.admission.asking import mutate, validate
from tests.clusters.formats.pods import container_with, pod

CORE = "tencent.com/vcuda-core"
MEMORY = "tencent.com/vcuda-memory"
INDEX = "tencent.com/predicate-gpu-idx-0"


def amounts(made: dict[str, Any], place: int = 0) -> dict[str, str]:
    """Return a container's limits, which equal its requests."""
    resources = made["spec"]["containers"][place]["resources"]
    assert resources["limits"] == resources["requests"]
    return dict(resources["limits"])


def test_a_pod_without_gpus_is_left_as_it_is() -> None:
    plain = pod({})
    policy = Policy(scheduler_name="gpucloud", library_directory="/opt", cdi_device="gpucloud.io/library=all")
    assert mutate(plain, policy) is plain


@pytest.mark.parametrize(
    ("named", "becomes"), [(None, "gpucloud"), ("default-scheduler", "gpucloud"), ("mine", "mine")]
)
def test_the_scheduler_is_named_where_nobody_chose_another(named: str | None, becomes: str) -> None:
    asked = pod(container_with(core=30, memory=4))
    if named is not None:
        asked["spec"]["schedulerName"] = named
    assert mutate(asked, Policy(scheduler_name="gpucloud"))["spec"]["schedulerName"] == becomes


def test_what_is_missing_of_a_share_is_filled_and_then_passes() -> None:
    policy = Policy(default_core=10, default_memory_mib=1000)
    made = mutate(pod(container_with(core=30), container_with(memory=8), container_with(core=200)), policy)
    assert [amounts(made, place) for place in range(3)] == [
        {CORE: "30", MEMORY: "4"},
        {MEMORY: "8", CORE: "10"},
        {CORE: "200"},
    ]
    assert validate(made)["allowed"]


def test_without_defaults_nothing_is_filled() -> None:
    asked = pod(container_with(core=30))
    assert mutate(asked) is asked


def test_forged_decisions_are_taken_out_of_strangers_pods() -> None:
    forged = pod(container_with(core=30, memory=4), annotations={INDEX: "3", "mine": "kept"})
    assert mutate(forged)["metadata"]["annotations"] == {"mine": "kept"}
    assert validate(mutate(forged))["allowed"]
    assert mutate(forged, groups=["system:masters"]) is forged


def test_the_library_is_mounted_and_preloaded_where_gpus_are_asked() -> None:
    asked = pod({}, {**container_with(core=30, memory=4), "env": [{"name": "LD_PRELOAD", "value": "/mine.so"}]})
    policy = Policy(library_directory="/opt/gpucloud/lib", cdi_device="gpucloud.io/library=all")
    made = mutate(asked, policy)
    first, second = made["spec"]["containers"]
    assert first == {"name": "c0"}
    assert second["env"] == [{"name": "LD_PRELOAD", "value": "/usr/local/gpucloud/libvcuda.so:/mine.so"}]
    assert second["volumeMounts"][0]["readOnly"]
    assert made["spec"]["volumes"][0]["hostPath"]["path"] == "/opt/gpucloud/lib"
    assert made["metadata"]["annotations"] == {"cdi.k8s.io/gpucloud": "gpucloud.io/library=all"}
    assert mutate(made, policy) is made


TRANSLATE = Policy(translated=frozenset({"HAMi", "gpushare"}))


@pytest.mark.parametrize(
    ("container", "becomes", "ceiling"),
    [
        (container_with(gpu=1, gpumem=3000), {CORE: "1", MEMORY: "12"}, "100"),
        (container_with(gpu=1, gpumem=3000, cores=30), {CORE: "30", MEMORY: "12"}, None),
        (container_with(gpu=2), {CORE: "200"}, None),
        (container_with(aliyun=2), {CORE: "1", MEMORY: "8"}, "100"),
    ],
)
def test_others_words_become_the_resources_that_are_offered(
    container: dict[str, Any], becomes: dict[str, str], ceiling: str | None
) -> None:
    made = mutate(pod(container), TRANSLATE)
    assert amounts(made) == becomes
    assert (made["metadata"].get("annotations") or {}).get("tencent.com/vcuda-core-limit") == ceiling
    assert validate(made)["allowed"]


def test_labels_of_kubeshare_become_resources_of_the_first_container_and_its_scheduler_is_replaced() -> None:
    words = {"sharedgpu/gpu_request": "0.5", "sharedgpu/gpu_limit": "1.0", "sharedgpu/gpu_mem": str(1 << 30)}
    asked = pod({}, {}, labels=words)
    asked["spec"]["schedulerName"] = "kubeshare-scheduler"
    made = mutate(asked, Policy(translated=frozenset({"KubeShare"}), scheduler_name="gpucloud"))
    assert amounts(made) == {CORE: "50", MEMORY: "4"}
    assert "resources" not in made["spec"]["containers"][1]
    assert made["metadata"]["annotations"] == {"tencent.com/vcuda-core-limit": "100"}
    assert made["spec"]["schedulerName"] == "gpucloud"
    assert mutate(made, Policy(translated=frozenset({"KubeShare"}))) == made
    assert validate(made)["allowed"]


def test_containers_of_gpushare_keep_their_own_parts() -> None:
    made = mutate(pod(container_with(aliyun=2), {}, container_with(aliyun=3)), TRANSLATE)
    assert [amounts(made, place)[MEMORY] for place in (0, 2)] == ["8", "12"]


@pytest.mark.parametrize(
    ("container", "why"),
    [
        (container_with(gpu=2, gpumem=3000), "parts of 2 GPUs"),
        (container_with(gpu=2, percent=50, cores=30), "parts of 2 GPUs"),
        (container_with(gpu=1, percent=50), "set ADMISSION_GPU_MEMORY_MIB"),
    ],
)
def test_what_two_resources_cannot_say_is_left_as_it_is_and_never_silently(container: dict[str, Any], why: str) -> None:
    asked = pod(container)
    assert mutate(asked, TRANSLATE) is asked
    warned = validate(asked, TRANSLATE)
    assert warned["allowed"]
    assert warned["warnings"][0].startswith("It is left as it is, and nothing here gives it a GPU.")
    assert why in warned["warnings"][0]
    refused = validate(asked, replace(TRANSLATE, refuse_unmet=True))
    assert why in refused["status"]["message"]
    # Where HAMi's own scheduler places its pods, they are none of our business.
    assert validate(asked) == {"uid": warned["uid"], "allowed": True}


@pytest.mark.parametrize(
    ("asked", "becomes"),
    [
        (pod(container_with(gpu=1, percent=50)), {CORE: "1", MEMORY: "48"}),
        (pod(container_with(gpu=1, percent=40, cores=60)), {CORE: "60", MEMORY: "38"}),
        (pod({}, labels={"sharedgpu/gpu_request": "0.2", "sharedgpu/gpu_limit": "1.0"}), {CORE: "20", MEMORY: "19"}),
    ],
)
def test_percents_of_memory_are_rewritten_if_all_gpus_have_the_same(
    asked: dict[str, Any], becomes: dict[str, str]
) -> None:
    policy = Policy(translated=frozenset({"HAMi", "KubeShare"}), gpu_memory_mib=24_576)
    made = mutate(asked, policy)
    assert amounts(made) == becomes
    assert validate(made, policy)["allowed"]


def test_percents_that_make_up_a_gpu_fit_one() -> None:
    """HAMi's own example: 40 and 60 percent on one GPU."""
    policy = Policy(translated=frozenset({"HAMi"}), gpu_memory_mib=24_576)
    both = [amounts(mutate(pod(container_with(gpu=1, percent=part, cores=part)), policy)) for part in (40, 60)]
    assert sum(int(one[MEMORY]) for one in both) <= 96


@pytest.mark.parametrize(("unit", "asked", "becomes"), [(1024, 2, "8"), (1, 16276, "64"), (1, 2048, "8")])
def test_gpushares_memory_is_in_the_clusters_unit(unit: int, asked: int, becomes: str) -> None:
    policy = Policy(translated=frozenset({"gpushare"}), gpushare_unit_mib=unit)
    assert amounts(mutate(pod(container_with(aliyun=asked)), policy))[MEMORY] == becomes


def test_memory_that_no_gpu_has_is_in_another_unit() -> None:
    asked = pod(container_with(aliyun=16276))
    assert mutate(asked, TRANSLATE) is asked
    assert "GPUSHARE_UNIT_MIB=1" in validate(asked, TRANSLATE)["status"]["message"]
    assert validate(asked, Policy(gpushare_unit_mib=1))["allowed"]


WORDS = {
    "nvidia.com/use-gputype": "A100,V100",
    "nvidia.com/nouse-gpuuuid": "GPU-1",
    "hami.io/gpu-scheduler-policy": "spread",
}


def test_models_and_uuids_are_handed_to_the_extender_and_the_rest_is_told_of() -> None:
    made = mutate(pod(container_with(gpu=1), annotations=WORDS), TRANSLATE)
    added = {key: made["metadata"]["annotations"][key] for key in made["metadata"]["annotations"].keys() - WORDS}
    assert added == {"gpucloud.io/gpu-model": "A100,V100", "gpucloud.io/gpu-uuid": "!GPU-1"}
    [warning] = validate(made, TRANSLATE)["warnings"]
    assert warning.startswith("hami.io/gpu-scheduler-policy is not followed")
    assert warning in validate(made, replace(TRANSLATE, refuse_unmet=True))["status"]["message"]


@pytest.mark.parametrize(
    "words", [{"nvidia.com/vgpu-mode": "mig"}, {"nvidia.com/numa-bind": "true"}, {"nvidia.com/use-gpuindexes": "0,1"}]
)
def test_a_pod_that_would_be_wrong_here_is_not_rewritten(words: dict[str, str]) -> None:
    asked = pod(container_with(gpu=1, gpumem=3000), annotations=words)
    assert mutate(asked, TRANSLATE) is asked
    assert next(iter(words)) in validate(asked, TRANSLATE)["warnings"][0]


def test_a_model_and_a_group_of_kubeshare_are_followed_or_told_of() -> None:
    policy = Policy(translated=frozenset({"KubeShare"}), gpu_memory_mib=16_384)
    said = {"gpu_request": "0.5", "gpu_limit": "1.0", "gpu_model": "Tesla-T4", "priority": "100", "group_name": "a"}
    made = mutate(pod({}, labels={f"sharedgpu/{word}": value for word, value in said.items()}), policy)
    assert made["metadata"]["annotations"]["gpucloud.io/gpu-model"] == "=Tesla-T4"
    group = {"sharedgpu/group_headcount": "10", "sharedgpu/group_threshold": "0.2"}
    labels = made["metadata"]["labels"] | group
    together = mutate(pod({}, labels=labels), policy)["metadata"]["annotations"]
    assert (together["gpucloud.io/gang"], together["gpucloud.io/gang-minimum"]) == ("a", "2")
    told = " ".join(validate(made, policy)["warnings"])
    assert "sharedgpu/priority is not followed" in told
    assert "sharedgpu/group_name is not followed" in told


def test_an_annotation_of_kubeshare_1_on_a_pod_is_told_of() -> None:
    said = {"kubeshare/gpu_request": "0.5", "kubeshare/gpu_limit": "1.0", "kubeshare/gpu_mem": "1048576"}
    policy = Policy(translated=frozenset({"KubeShare"}))
    asked = pod({}, annotations=said)
    assert mutate(asked, policy) is asked
    assert "SharePod: create one" in validate(asked, policy)["warnings"][0]


def test_only_the_formats_that_are_named_are_rewritten() -> None:
    asked = pod(container_with(gpu=1, gpumem=3000))
    assert mutate(asked, Policy(translated=frozenset({"gpushare"}))) is asked


@pytest.mark.parametrize("operation", ["UPDATE", "DELETE"])
def test_a_pod_that_is_there_is_not_touched(operation: str) -> None:
    asked = pod(container_with(core=30, memory=4))
    assert mutate(asked, Policy(scheduler_name="gpucloud"), operation=operation) is asked


@pytest.mark.parametrize("said", [["hami"], ["HAMi", "nvidia"]])
def test_a_format_that_is_not_translated_stops_the_start(settings: Any, said: list[str]) -> None:
    settings.ADMISSION_TRANSLATE = said
    with pytest.raises(ImproperlyConfigured, match=f"{said[-1]} is no format.*Use HAMi, KubeShare, gpushare"):
        apps.get_app_config("clusters").ready()
    settings.ADMISSION_TRANSLATE = ["HAMi", "gpushare", "KubeShare"]
    apps.get_app_config("clusters").ready()
