"""Gangs: so many pods are placed together, or none of them is."""

from typing import Any

import msgspec
import pytest

from apps.clusters.kube.client import Refused
from apps.clusters.kube.objects import Pod
from apps.clusters.kube.pods import chosen_for
from apps.clusters.kube.reflector import Observation
from apps.clusters.models import Cluster, Placement, PodHold
from tests.cast import Cast, give_plenty
from tests.clusters.paper import container, pod
from tests.clusters.test_promises import World, cluster, machine

__all__ = ["cluster", "machine"]
Json = dict[str, Any]


@pytest.fixture(params=[Placement.GPU_ADMISSION, Placement.GPUCLOUD])
def placed_by(request: pytest.FixtureRequest, cluster: Cluster) -> Cluster:
    cluster.change(placement=request.param)
    return cluster


def member(name: str, minimum: int = 3, core: int = 40, gang: str = "train") -> Json:
    said = {"gpucloud.io/gang": gang, "gpucloud.io/gang-minimum": str(minimum)}
    return pod(name, container(core, 8), annotations=said)


def nodes(said: Json) -> list[str]:
    return said["NodeNames"] or [item["metadata"]["name"] for item in (said["Nodes"] or {"items": []})["items"]]


def gpus(world: World) -> dict[str, str | None]:
    return {
        name: item["metadata"]["annotations"].get("tencent.com/predicate-gpu-idx-0")
        for name, item in world.paper.pods.items()
    }


def test_a_gang_waits_until_enough_of_it_exists(placed_by: Cluster) -> None:
    world = World(
        placed_by, member("a"), member("b"), member("of-another", gang="other"), pod("plain", container(1, 1))
    )
    said = world.ask("a")
    assert nodes(said) == []
    assert "gang train needs 3 pods at once, of which 1 do not exist yet" in said["FailedNodes"]["gpu1"]
    assert set(gpus(world).values()) == {None}


def test_the_first_of_a_gang_is_placed_with_the_others(placed_by: Cluster) -> None:
    world = World(placed_by, member("a"), member("b"), member("c"), pod("late", container(90, 8)))
    assert nodes(world.ask("a")) == ["gpu1"]
    assert None not in [gpus(world)[name] for name in "abc"]
    assert set(PodHold.objects.values_list("pod_uid", flat=True)) == {"uid-a", "uid-b", "uid-c"}
    # Their GPUs are theirs before kube-scheduler has asked for them.
    assert nodes(world.ask("late")) == []
    assert [nodes(world.ask(name)) for name in "bc"] == [["gpu1"], ["gpu1"]]


def test_a_gang_without_room_for_its_minimum_takes_nothing(placed_by: Cluster) -> None:
    world = World(placed_by, *(member(name, core=70) for name in "abc"), pod("other", container(90, 8)))
    said = world.ask("a")
    assert nodes(said) == []
    assert "gang train needs 3 pods at once, and there is room for 2" in said["FailedNodes"]["gpu1"]
    # Nothing was written: an annotation would make kube-scheduler ask for the pods again at once.
    assert world.paper.version == 1
    assert set(gpus(world).values()) == {None}
    assert not PodHold.objects.exists()
    assert nodes(world.ask("other")) == ["gpu1"]


def test_pods_that_the_watch_has_not_told_of_yet_are_read(cluster: Cluster) -> None:
    """kube-scheduler may know a pod earlier, and asks for the last one of a gang only once."""
    world = World(cluster, member("a", minimum=2), member("of-another", gang="other"))
    world.paper.pods |= {name: member(name, minimum=2) for name in ("b", "ended")}
    world.paper.pods["ended"]["status"]["phase"] = "Succeeded"
    assert nodes(world.ask("a")) == ["gpu1"]
    assert [name for name, index in gpus(world).items() if index is not None] == ["a", "b"]


def test_what_the_watch_says_while_a_gang_is_tried_stays(cluster: Cluster) -> None:
    mirror = World(cluster, member("a"), member("b")).paper.mirror
    before = mirror.pod(("ml", "a"))
    assert before is not None
    mirror.pretend(chosen_for(before, "gpu1", {0: (0,)}))
    assert [one.name for one in mirror.pods_on("gpu1")] == ["a"]
    mirror.see(Observation("pods", (msgspec.convert(member("a"), Pod),), gone=True))
    mirror.pretend(before)
    assert mirror.pod(before.key) is None
    assert mirror.pods_on("gpu1") == []


def test_pods_beyond_the_minimum_are_placed_one_by_one(placed_by: Cluster) -> None:
    world = World(placed_by, *(member(name, minimum=2, core=45) for name in "abcde"))
    assert nodes(world.ask("c")) == ["gpu1"]
    assert [name for name, index in gpus(world).items() if index is not None] == ["a", "c"]
    assert nodes(world.ask("d")) == ["gpu1"]
    assert nodes(world.ask("e")) == ["gpu1"]
    assert nodes(world.ask("b")) == []
    assert nodes(world.ask("a")) == ["gpu1"]


def test_a_gang_of_which_one_cannot_be_told_takes_nothing(cluster: Cluster) -> None:
    world = World(cluster, member("a", minimum=2), member("b", minimum=2))
    world.paper.refusals = [Refused(403, "Forbidden", "no")]
    assert nodes(world.ask("a")) == []
    assert set(gpus(world).values()) == {None}
    assert not PodHold.objects.exists()


def test_members_that_the_tenants_quota_has_no_room_for_take_nothing(cast: Cast, cluster: Cluster) -> None:
    give_plenty(cast.globex)
    cluster.change(placement=Placement.GPUCLOUD)
    world = World(cluster, *(member(name, minimum=9, core=10) for name in "abcdefghi"))
    quota = cast.acme.quotas.get(resource="core_percent")
    quota.change(hard=50)
    assert nodes(world.ask("a")) == []
    assert set(gpus(world).values()) == {None}
