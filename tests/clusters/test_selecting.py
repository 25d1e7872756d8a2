"""Pods that accept only some GPUs are placed on those, by both placements, and preempt nobody elsewhere."""

import json
from typing import Any

import pytest
from django.db import OperationalError

from apps.clusters.extender import preempting
from apps.clusters.models import Cluster, Placement
from apps.nodes.models import Gpu
from tests.cast import Cast, Machine
from tests.clusters.paper import container, pod
from tests.clusters.test_promises import World, cluster, machine

__all__ = ["cluster", "machine"]
Json = dict[str, Any]
MODEL, UUID = "gpucloud.io/gpu-model", "gpucloud.io/gpu-uuid"


@pytest.fixture
def models(machine: Machine) -> list[Gpu]:
    """Give the machine's two GPUs different models."""
    for index, model in enumerate(("Tesla T4", "NVIDIA A100-SXM4-80GB")):
        Gpu.objects.filter(node=machine.node, index=index).update(model=model)
    return list(Gpu.objects.order_by("index"))


@pytest.fixture(params=[Placement.GPU_ADMISSION, Placement.GPUCLOUD])
def placed_by(request: pytest.FixtureRequest, cluster: Cluster) -> Cluster:
    cluster.change(placement=request.param)
    return cluster


def words(models: list[Gpu]) -> dict[str, tuple[dict[str, str], str]]:
    return {
        "model": ({MODEL: "A100"}, "1"),
        "not-model": ({MODEL: "!T4"}, "1"),
        "uuid": ({UUID: models[1].uuid}, "1"),
        "not-uuid": ({UUID: f"!{models[0].uuid}"}, "1"),
        "any": ({MODEL: "T4,A100"}, "0"),
    }


@pytest.mark.parametrize("name", ["model", "not-model", "uuid", "not-uuid", "any"])
def test_a_pod_gets_only_a_gpu_that_it_accepts(placed_by: Cluster, models: list[Gpu], name: str) -> None:
    annotations, index = words(models)[name]
    said = World(placed_by, pod("asks", container(30, 8), annotations=annotations)).ask("asks")
    assert (said["FailedNodes"], said["gpus"]) == ({}, index)


@pytest.mark.parametrize("asked", [container(30, 8), container(100)])
def test_a_pod_waits_rather_than_run_on_another(placed_by: Cluster, models: list[Gpu], asked: Json) -> None:
    one = pod("one", container(100), annotations={MODEL: "A100"})
    two = pod("two", asked, annotations={MODEL: "A100"})
    world = World(placed_by, one, two, pod("other", container(100)))
    assert world.ask("one")["gpus"] == "1"
    said = world.ask("two")
    assert (said["NodeNames"] or said["Nodes"]["items"], said["gpus"]) == ([], None)
    assert world.ask("other")["gpus"] == "0"


def test_the_reason_names_what_it_accepts(placed_by: Cluster, models: list[Gpu]) -> None:
    said = World(placed_by, pod("asks", container(30, 8), annotations={MODEL: "H200"})).ask("asks")
    assert "gpucloud.io/gpu-model: H200" in said["FailedNodes"]["gpu1"]


def test_without_the_ledger_nobody_knows_which_gpu_it_is(
    cluster: Cluster, models: list[Gpu], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(cluster, pod("asks", container(30, 8), annotations={MODEL: "A100"}))

    def fail() -> None:
        raise OperationalError

    monkeypatch.setattr(world.promises, "_gpus", fail)
    assert "database does not answer" in world.ask("asks")["Error"]


def test_nobody_is_evicted_from_a_gpu_that_would_not_be_accepted(
    cast: Cast, cluster: Cluster, models: list[Gpu]
) -> None:
    low = [
        pod(f"low-{index}", container(100), on="gpu1", annotations={"tencent.com/predicate-gpu-idx-0": str(index)})
        for index in range(2)
    ]
    high = pod("high", container(100), annotations={MODEL: "A100"})
    high["spec"]["priority"] = 1000
    world = World(cluster, *low, high)
    body = {"Pod": high, "NodeNameToMetaVictims": {"gpu1": {"Pods": []}}}
    said = json.loads(preempting.preempt(world.extended, json.dumps(body).encode()))
    assert said["NodeNameToMetaVictims"]["gpu1"]["Pods"] == [{"UID": "uid-low-1"}]
    high["metadata"]["annotations"] = {MODEL: "H200"}
    said = json.loads(preempting.preempt(world.extended, json.dumps({**body, "Pod": high}).encode()))
    assert said["NodeNameToMetaVictims"] == {}
