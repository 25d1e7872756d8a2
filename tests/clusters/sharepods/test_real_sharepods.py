"""SharePods against a real API server: placed by our core, with all three label rules, and released."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command

from apps.clusters.importing import taking
from apps.clusters.importing.plan import Snapshot, plan
from apps.clusters.models import PodClaim, SharePod
from apps.clusters.services import clusters
from apps.clusters.sharepods.controller import SharePods
from apps.clusters.sharepods.definition import definition
from apps.nodes.models import Node
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim
from apps.scheduling.services.claims import lifecycle
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import Cast, Machine, assert_books_agree, give
from tests.clusters.control_plane import ControlPlane
from tests.clusters.kubeconfigs import kubeconfig
from tests.clusters.real import Namespace, know

pytestmark = [pytest.mark.django_db, pytest.mark.serial, pytest.mark.control_plane]


@pytest.fixture(scope="session")
def plane(real_plane: ControlPlane) -> ControlPlane:
    """Return a control plane with the SharePod kind."""
    know(real_plane.client(), definition())
    return real_plane


class World(Namespace):
    """A namespace, two GPUs on a machine that its cluster calls kube-1, and the controller."""

    def __init__(self, plane: ControlPlane, cast: Cast) -> None:
        super().__init__(plane, cast)
        give(cast.acme, core_percent=None, memory_mib=None)
        self.cast, self.machine = cast, Machine("gpu1", cast.pool, gpus=2)
        Node.objects.filter(pk=self.machine.node.pk).update(kubernetes_node="kube-1")
        self.controller = SharePods(self.cluster, self.client)

    def share(self, name: str, *, spec: dict[str, Any] | None = None, **words: str) -> None:
        """Create a SharePod; `anti_affinity` for sched_anti-affinity."""
        said = {"gpu_request": "0.25", "gpu_limit": "0.5", "gpu_mem": str(1 << 30)}
        said |= {
            f"sched_{key.replace('_', '-')}" if key.endswith(("affinity", "exclusion")) else key: value
            for key, value in words.items()
        }
        self.make(
            "sharepods",
            {
                "apiVersion": "kubeshare.nthu/v1",
                "kind": "SharePod",
                "metadata": {"name": name, "annotations": {f"kubeshare/{key}": value for key, value in said.items()}},
                "spec": {"containers": [{"name": "cuda", "image": "cuda:12"}], **(spec or {})},
            },
        )
        # Only its own namespace's: others belong to other tests.
        self.turn()

    def turn(self) -> None:
        """Run the controller, a round, the agent, and the controller again."""
        self.controller.reconcile_all()
        run_round(self.cast.pool)
        self.machine.obey()
        self.controller.reconcile_all()

    def status(self, name: str) -> dict[str, Any]:
        return dict(self.get("sharepods", name).get("status") or {})

    def gpu(self, name: str) -> int:
        """Return its GPU of the two."""
        uuids = [self.machine.gpu(index).uuid for index in range(2)]
        return uuids.index(self.status(name)["BoundDeviceID"])


@pytest.fixture
def world(plane: ControlPlane, cast: Cast) -> Iterator[World]:
    made = World(plane, cast)
    yield made
    for kind in ("sharepods", "pods"):
        made.client.delete(made.path(kind))


def test_a_sharepod_becomes_a_pod_on_the_gpu_of_its_claim(world: World) -> None:
    world.share("train")
    pod = world.get("pods", "train")
    assert pod["spec"]["nodeName"] == "kube-1"
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {
        "tencent.com/vcuda-core": "25",
        "tencent.com/vcuda-memory": "4",
    }
    said = pod["metadata"]["annotations"]
    assert said["tencent.com/predicate-gpu-idx-0"] == str(world.gpu("train"))
    assert said["tencent.com/vcuda-core-limit"] == "50"
    status = world.status("train")
    assert (status["Node"], status["Phase"], status["Message"]) == ("kube-1", "Pending", "")
    claim = Claim.objects.get(uid=said["gpucloud.io/claim"])
    assert (claim.state, claim.core_limit, claim.memory_mib) == ("active", 50, 1024)
    assert claim.pod == {"namespace": world.name, "name": "train", "container": "cuda"}
    assert PodClaim.objects.get().pod_uid == pod["metadata"]["uid"]
    assert_books_agree()


def test_affinity_puts_those_of_one_label_on_one_gpu(world: World) -> None:
    world.share("a", affinity="red")
    world.share("b", affinity="red")
    assert world.gpu("a") == world.gpu("b")
    world.share("c", affinity="red", gpu_request="0.4")
    assert world.gpu("c") == world.gpu("a")
    # A pod that no longer fits beside its label waits, though the other GPU is free.
    world.share("d", affinity="red", gpu_request="0.4")
    assert "BoundDeviceID" not in world.status("d")
    assert world.status("d")["Message"]


def test_anti_affinity_keeps_those_of_one_label_apart(world: World) -> None:
    for name in "abc":
        world.share(name, anti_affinity="green")
    assert {world.gpu("a"), world.gpu("b")} == {0, 1}
    assert world.status("c")["Phase"] == "Pending"
    assert "BoundDeviceID" not in world.status("c")
    world.client.delete(world.path("sharepods", "a"))
    world.turn()
    world.turn()
    assert world.status("c")["BoundDeviceID"]


def test_exclusion_keeps_everybody_else_away(world: World) -> None:
    world.share("a", exclusion="blue")
    world.share("plain")
    world.share("b", exclusion="blue")
    assert world.gpu("a") == world.gpu("b")
    assert world.gpu("plain") != world.gpu("a")
    world.share("c", exclusion="other")
    assert "BoundDeviceID" not in world.status("c")


def test_those_of_one_gpuid_share_a_gpu_and_other_words_stand_for_others(world: World) -> None:
    world.share("a", GPUID="abcde", spec={"nodeName": "kube-1"})
    world.share("b", GPUID="abcde")
    world.share("c", GPUID="fghij")
    assert world.gpu("a") == world.gpu("b") != world.gpu("c")
    world.share("d", GPUID=world.machine.gpu(1).uuid)
    assert world.gpu("d") == 1
    world.share("e", spec={"nodeName": "nowhere"})
    assert "nowhere" in world.status("e")["Message"]


def test_a_changed_annotation_moves_the_running_share(world: World) -> None:
    world.share("train")
    before = world.get("pods", "train")["metadata"]["uid"]
    said = {"kubeshare/gpu_request": "0.5", "kubeshare/gpu_limit": "1.0", "kubeshare/gpu_mem": str(2 << 30)}
    world.client.patch(world.path("sharepods", "train"), {"metadata": {"annotations": said}})
    world.turn()
    claim = Claim.objects.get()
    assert (claim.core_request, claim.core_limit, claim.memory_mib) == (50, 100, 2048)
    assert world.get("pods", "train")["metadata"]["uid"] == before
    assert_books_agree()


def test_a_pod_that_ends_gives_its_share_back_and_its_status_says_so(world: World) -> None:
    world.share("train")
    world.say("pods", "train", {"phase": "Succeeded"})
    world.turn()
    assert world.status("train")["Phase"] == "Succeeded"
    assert Claim.objects.get().state == "released"
    world.turn()
    assert Claim.objects.count() == 1


def test_a_sharepod_that_is_removed_takes_its_pod_along(world: World) -> None:
    world.share("train")
    world.client.delete(world.path("sharepods", "train"))
    world.turn()
    assert SharePod.objects.get().ended_at is not None
    assert Claim.objects.get().state == "released"
    pods = world.client.list(world.path("pods"))[0]
    assert all("deletionTimestamp" in bytes(pod).decode() for pod in pods)


def test_a_removed_pod_is_made_again_on_its_gpu(world: World) -> None:
    world.share("train")
    before, gpu = world.get("pods", "train")["metadata"]["uid"], world.gpu("train")
    world.client.delete(f"{world.path('pods', 'train')}?gracePeriodSeconds=0")
    world.turn()
    after = world.get("pods", "train")
    assert after["metadata"]["uid"] != before
    assert world.gpu("train") == gpu
    assert PodClaim.objects.get().pod_uid == after["metadata"]["uid"]


def test_whoever_watches_pods_finds_the_claim_of_a_sharepod_and_makes_no_second(world: World) -> None:
    world.share("train")
    pod, (claim,) = world.get("pods", "train"), Claim.objects.all()
    PodClaim.objects.all().delete()
    taking.take(principal=SYSTEM, cluster=world.cluster, plan=plan(Snapshot(pods=[pod])))
    assert PodClaim.objects.get().claim == claim == Claim.objects.get()
    # The pod's reference to a claim counts only if that claim is for a pod of its name.
    pod["metadata"] |= {"name": "other", "uid": "other"}
    taking.take(principal=SYSTEM, cluster=world.cluster, plan=plan(Snapshot(pods=[pod])))
    assert Claim.objects.count() == 2
    assert_books_agree()


def test_a_share_that_was_given_back_with_its_pod_is_asked_for_again(world: World) -> None:
    world.share("train")
    lifecycle.release_claim(principal=SYSTEM, claim=Claim.objects.get(), why="its pod is over")
    world.machine.obey()
    world.client.delete(f"{world.path('pods', 'train')}?gracePeriodSeconds=0")
    world.turn()
    assert sorted(Claim.objects.values_list("state", flat=True)) == ["active", "released"]
    assert world.get("pods", "train")["metadata"]["annotations"]["gpucloud.io/claim"] == str(
        Claim.objects.get(state="active").uid
    )


def test_the_command_looks_at_every_cluster_also_where_one_is_away(world: World) -> None:
    clusters.connect(principal=SYSTEM, name="a-away", pool=world.cast.pool, kubeconfig=kubeconfig())
    world.share("train")
    world.say("pods", "train", {"phase": "Succeeded"})
    call_command("sharepods", once=True)
    assert world.status("train")["Phase"] == "Succeeded"


def test_what_cannot_be_says_why_in_the_status(world: World) -> None:
    world.share("nonsense", spec={"containers": [{"image": "cuda:12"}, 7]})
    assert "not a pod's" in world.status("nonsense")["Message"]
    world.share("odd", gpu_request="0.9", gpu_limit="0.5")
    assert world.status("odd")["Phase"] == "Failed"
    assert "more than" in world.status("odd")["Message"]
    world.make(
        "resourcequotas", {"metadata": {"name": "none"}, "spec": {"hard": {"requests.tencent.com/vcuda-core": "0"}}}
    )
    # Until its status is set it counts nothing.
    while "hard" not in world.get("resourcequotas", "none").get("status", {}):
        time.sleep(0.1)
    world.share("train")
    assert "exceeded quota" in world.status("train")["Message"]
    assert Claim.objects.get().state == "active"
