"""From a quota to bound pods with GPUs, on a real control plane: its own scheduler calls the extender.

There is no kubelet: a node has the state that its device plugin would give it, and a bound pod stays Pending.
"""

from collections.abc import Iterator

import pytest

from apps.clusters.kube.client import Client, Refused
from apps.clusters.kube.reflector import NODES, Observation, Reflector
from tests.clusters.cluster_objects import (
    CHOSEN,
    CORE,
    INDEX,
    add_namespace,
    add_node,
    ask,
    counted_core,
    give,
    placement_of,
    pod,
    remove,
    remove_all,
)
from tests.clusters.control_plane import ControlPlane
from tests.clusters.extenders import Listening
from tests.processes import eventually

pytestmark = [pytest.mark.control_plane, pytest.mark.serial, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def no_pods_are_left(client: Client) -> Iterator[None]:
    yield
    remove_all(client)


@pytest.fixture(scope="module")
def client(control_plane: ControlPlane) -> Client:
    """Connect a cluster with one node of four GPUs with 59 units each."""
    found = control_plane.client()
    add_node(found, "gpu1", gpus=4, units=59)
    return found


def test_a_quota_refuses_what_exceeds_it_and_the_rest_gets_its_gpus(client: Client) -> None:
    """The walk-through: quota 100 core and 59 units, pods of 10, 20, 100 and 200; then a sufficient quota."""
    add_namespace(client, "walk")
    give(client, "walk", core=100, memory=59)
    ask(client, "walk", "ten", core=10, memory=1)
    ask(client, "walk", "twenty", core=20, memory=1)
    # The controller counts pods a moment later than the API server admits them.
    assert eventually(lambda: counted_core(client, "walk") == "30", seconds=30)
    for name, core in {"hundred": 100, "two-hundred": 200}.items():
        with pytest.raises(Refused) as refusal:
            ask(client, "walk", name, core=core, memory=1)
        assert refusal.value.status == 403
        assert f"exceeded quota: gpu, requested: requests.{CORE}={core}" in refusal.value.message
        assert f"used: requests.{CORE}=30, limited: requests.{CORE}=100" in refusal.value.message
    # The fullest GPU that fits is filled first, so the two share one.
    assert placement_of(client, "walk", "ten") == ("gpu1", "0")
    assert placement_of(client, "walk", "twenty") == ("gpu1", "0")

    give(client, "walk", core=400, memory=236)
    ask(client, "walk", "hundred", core=100, memory=1)
    ask(client, "walk", "two-hundred", core=200, memory=1)
    assert placement_of(client, "walk", "hundred") == ("gpu1", "1")
    assert placement_of(client, "walk", "two-hundred") == ("gpu1", "2,3")


def test_what_finds_no_room_on_a_gpu_waits_and_gets_it_when_it_is_free(client: Client) -> None:
    """The GPUs together have enough capacity, and none of them alone: the extender knows that, Kubernetes cannot."""
    add_namespace(client, "waits")
    names = [f"sixty-{number}" for number in range(4)]
    for name in names:
        ask(client, "waits", name, core=60, memory=1)
    assert sorted(placement_of(client, "waits", name)[1] for name in names) == ["0", "1", "2", "3"]
    ask(client, "waits", "late", core=100)
    said = "does not match with this node"
    assert eventually(lambda: said in str(pod(client, "waits", "late")["status"]), seconds=30)
    freed = placement_of(client, "waits", names[0])[1]
    remove(client, "waits", names[0])
    assert placement_of(client, "waits", "late", seconds=60) == ("gpu1", freed)


def test_a_pod_whose_binding_failed_is_placed_again(client: Client) -> None:
    """A scheduler may die between filter and bind: the pod has its annotations, and no node."""
    add_namespace(client, "again")
    container = {"name": "main", "image": "cuda", "resources": {"limits": {CORE: "400"}}}
    stale = {INDEX: "0,1,2,3", CHOSEN: "gpu1", "tencent.com/gpu-assigned": "false", "tencent.com/predicate-time": "1"}
    metadata = {"name": "was-chosen", "annotations": stale}
    client.post("/api/v1/namespaces/again/pods", {"metadata": metadata, "spec": {"containers": [container]}})
    assert placement_of(client, "again", "was-chosen") == ("gpu1", "0,1,2,3")
    assert pod(client, "again", "was-chosen")["metadata"]["annotations"]["tencent.com/predicate-time"] != "1"


def test_a_watch_survives_a_restart_of_the_api_server(
    client: Client, control_plane: ControlPlane, extender: Listening
) -> None:
    add_namespace(client, "restart")
    ask(client, "restart", "before", core=100)
    placement_of(client, "restart", "before")
    control_plane.stop_one("kube-apiserver")
    assert eventually(lambda: len(extender.troubles) >= 2, seconds=30)
    control_plane.start_api_server()
    # The scheduler of the control plane needs a moment to come back too.
    ask(client, "restart", "after", core=300)
    node, gpus = placement_of(client, "restart", "after", seconds=90)
    assert (node, len(gpus.split(","))) == ("gpu1", 3)
    mirror = extender.clusters["kube"].mirror
    assert eventually(
        lambda: (found := mirror.pod(("restart", "after"))) is not None and bool(found.bound_to), seconds=30
    )
    assert [item.name for item in mirror.pods_on("gpu1")] == ["after", "before"]


def test_where_the_version_to_watch_from_is_gone_everything_is_listed_anew(
    client: Client, control_plane: ControlPlane
) -> None:
    # An API server remembers changes since its start.
    control_plane.stop_one("kube-apiserver")
    control_plane.start_api_server()
    seen: list[Observation] = []
    watch = Reflector(client, NODES, see=seen.append, fail=lambda kind, text: None, version="1")
    watch.start()
    assert eventually(lambda: watch.lists == 1, seconds=30)
    assert [item.whole for item in seen] == [True]
    watch.stop()
