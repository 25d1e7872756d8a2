"""A resized pod counts with its claim where its annotations show less: to the filter, to its race, to preemption."""

import json
from typing import Any

import pytest

from apps.clusters.extender import preempting
from apps.clusters.importing import following
from apps.clusters.models import Cluster, PodClaim
from apps.clusters.services import outside, resizing
from apps.scheduling.models import Claim
from tests.cast import Cast, Machine
from tests.clusters.paper import container, pod
from tests.clusters.test_promises import World, cluster, machine

__all__ = ["cluster", "machine"]
Json = dict[str, Any]


def run(world: World, cluster: Cluster, machine: Machine, name: str) -> Json:
    """Choose GPUs for the pod, bind it, and record it."""
    world.ask(name)
    bound = world.paper.pods[name]
    bound["spec"]["nodeName"] = "gpu1"
    following.follow(cluster=cluster, pod=bound, labels={})
    machine.obey()
    return bound


def resize(cluster: Cluster, bound: Json, **words: str) -> None:
    """Annotate the pod as `kubectl annotate` does, and let the watch apply it."""
    keys = {"core": resizing.CORE, "memory": resizing.MEMORY}
    annotations = {keys[name]: value for name, value in words.items()}
    resizing.follow(cluster=cluster, pod_uid=bound["metadata"]["uid"], annotations=annotations)


def claim_of(name: str) -> Claim:
    claim = PodClaim.objects.get(pod=name).claim
    assert claim is not None
    return claim


@pytest.mark.parametrize(("words", "next_one"), [({"core": "95"}, (60, 10)), ({"memory": "90"}, (10, 10))])
def test_the_next_pod_is_not_sent_to_the_gpu_that_a_resize_filled(
    cluster: Cluster, machine: Machine, words: dict[str, str], next_one: tuple[int, int]
) -> None:
    world = World(cluster, pod("p", container(30, 10)), pod("q", container(*next_one)))
    bound = run(world, cluster, machine, "p")
    resize(cluster, bound, **words)
    assert claim_of("p").generation == 2
    world.promises.refresh()
    assert (bound["metadata"]["annotations"]["tencent.com/predicate-gpu-idx-0"], world.ask("q")["gpus"]) == ("0", "1")


def test_a_resize_after_the_last_look_is_seen_under_the_gpus_lock(cluster: Cluster, machine: Machine) -> None:
    world = World(cluster, pod("p", container(30, 10)), pod("q", container(60, 10)))
    resize(cluster, run(world, cluster, machine, "p"), core="95")
    # The extender has not read the ledger since.
    assert world.ask("q")["gpus"] == "1"


def test_without_that_look_it_is_sent_to_the_full_gpu(
    cluster: Cluster, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the pod is bound where it gets no claim."""
    world = World(cluster, pod("p", container(30, 10)), pod("q", container(60, 10)))
    resize(cluster, run(world, cluster, machine, "p"), core="95")
    monkeypatch.setattr(outside, "_above_annotations", lambda *_: {})
    bound = run(world, cluster, machine, "q")
    assert bound["metadata"]["annotations"]["tencent.com/predicate-gpu-idx-0"] == "0"
    row = PodClaim.objects.get(pod="q")
    assert (row.claim, "have no room" in row.problem) == (None, True)


def test_a_pod_that_was_made_smaller_keeps_the_part_that_its_annotations_show(
    cluster: Cluster, machine: Machine
) -> None:
    world = World(cluster, pod("p", container(80, 10)), pod("q", container(60, 10)))
    resize(cluster, run(world, cluster, machine, "p"), core="10")
    machine.obey()
    world.promises.refresh()
    assert world.ask("q")["gpus"] == "1"


def test_a_running_pod_of_another_sharer_counts_with_its_claim(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    """It has none of gpu-admission's annotations."""
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "80"}
    word = f"{machine.gpu(0).uuid},NVIDIA,4096,80:;"
    theirs = pod(
        "theirs", {"name": "main", "resources": {"limits": limits}}, on="gpu1", phase="Running",
        annotations={"hami.io/vgpu-devices-allocated": word},
    )  # fmt: skip
    world = World(cluster, theirs, pod("q", container(60, 10)))
    following.follow(cluster=cluster, pod=theirs, labels={})
    assert claim_of("theirs").core_request == 80
    world.promises.refresh()
    assert world.ask("q")["gpus"] == "1"


def test_a_victim_gives_back_what_it_was_resized_to(cluster: Cluster, machine: Machine) -> None:
    world = World(cluster, pod("p", container(30, 10)), pod("r", container(100)))
    resize(cluster, run(world, cluster, machine, "p"), core="95")
    run(world, cluster, machine, "r")
    world.promises.refresh()
    wants = pod("wants", container(60, 10))
    wants["spec"]["priority"] = 9
    for name in ("p", "r"):
        world.paper.see(name)
    asked = {"Pod": wants, "NodeNameToMetaVictims": {"gpu1": {"Pods": [{"UID": "uid-p"}]}}}
    said = json.loads(preempting.preempt(world.extended, json.dumps(asked).encode()))
    assert said["NodeNameToMetaVictims"]["gpu1"]["Pods"] == [{"UID": "uid-p"}]


def test_what_another_extender_has_just_promised_is_not_promised_again(cluster: Cluster, machine: Machine) -> None:
    """Two may lead for a moment; the second has not heard of the first one's annotations."""
    pods = [pod("p", container(60, 10)), pod("q", container(60, 10))]
    first, second = World(cluster, *json.loads(json.dumps(pods))), World(cluster, *pods)
    assert first.ask("p")["gpus"] == "0"
    assert second.ask("q")["gpus"] == "1"
