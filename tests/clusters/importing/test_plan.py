"""Import plan of a cluster: new objects, and reasons for those that cannot be made."""

import json
from dataclasses import replace
from typing import Any

import pytest

from apps.clusters.importing.plan import Plan, Snapshot, plan, shares_by_container
from tests.clusters.formats.pods import container_with, pod
from tests.clusters.importing.populated import UUID, gpu_manager_pod, hami_pod, populate, quota, running


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
