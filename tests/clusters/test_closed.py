"""The extender sends no pod where it would get no claim: reserved capacity, unhealthy GPUs, cordoned nodes."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from apps.clusters.importing import following
from apps.clusters.models import Cluster, PodClaim, PodHold
from apps.clusters.services import bindings, clusters
from apps.nodes.models import Gpu, Node
from apps.quotas.principals import SYSTEM
from apps.reservations.lifecycle import create_reservation
from apps.scheduling.models import Reservation
from tests.cast import GIB, Cast, Machine, give_plenty
from tests.clusters.kubeconfigs import kubeconfig
from tests.clusters.paper import container, pod
from tests.clusters.test_promises import World


@pytest.fixture
def machine(cast: Cast) -> Machine:
    give_plenty(cast.acme, cast.globex)
    return Machine("gpu1", cast.pool, gpus=2)


@pytest.fixture(params=["gpu-admission", "gpucloud"])
def cluster(cast: Cast, machine: Machine, request: pytest.FixtureRequest) -> Cluster:
    """Create the cluster, by both rules."""
    made = clusters.connect(
        principal=SYSTEM, name="kube", pool=cast.pool, kubeconfig=kubeconfig(), placement=request.param
    )
    bindings.bind(principal=SYSTEM, cluster=made, namespace="ml", tenant=cast.acme)
    return made


def book(cast: Cast, core: int, **facts: Any) -> Reservation:
    """Book next week, on one GPU."""
    begin = timezone.now() + timedelta(days=7)
    asked: dict[str, Any] = {"name": "exam", "core_request": core, "memory_mib": 8 * GIB}
    asked |= {"start_at": begin, "end_at": begin + timedelta(hours=2), **facts}
    return create_reservation(principal=SYSTEM, tenant=cast.globex, pool=cast.pool, **asked)[0]


def becomes_a_claim(cluster: Cluster, world: World, name: str) -> bool:
    """Return True if it becomes a claim once it is bound."""
    bound = world.paper.pods[name]
    bound["spec"]["nodeName"] = "gpu1"
    following.follow(cluster=cluster, pod=bound, labels={})
    return PodClaim.objects.filter(pod=name, claim__isnull=False).exists()


def test_what_is_reserved_for_later_is_no_pods(cast: Cast, cluster: Cluster) -> None:
    other = 1 - book(cast, 100).gpus.get().index
    world = World(cluster, *(pod(name, container(60, 10)) for name in "pq"))
    assert world.ask("p")["gpus"] == str(other)
    assert becomes_a_claim(cluster, world, "p")
    refused = world.ask("q")
    assert refused["gpus"] is None
    if cluster.placement == "gpucloud":
        assert "reserved" in refused["FailedNodes"]["gpu1"]


def test_beside_a_reservation_the_rest_is_to_be_had_once(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    reserved = book(cast, 60).gpus.get().index
    Gpu.objects.exclude(index=reserved).update(unhealthy="XID 79")
    world = World(cluster, pod("p", container(41, 10)), pod("q", container(40, 10)), pod("r", container(1, 1)))
    assert [world.ask(name)["gpus"] for name in "pqr"] == [None, str(reserved), None]
    assert becomes_a_claim(cluster, world, "q")


def test_what_is_booked_meanwhile_is_not_promised(cast: Cast, cluster: Cluster) -> None:
    world = World(cluster, pod("p", container(60, 10)))
    index = book(cast, 100).gpus.get().index
    assert world.ask("p")["gpus"] == str(1 - index)
    assert PodHold.objects.get().gpu.index == 1 - index


def test_a_gpu_that_ails_or_is_gone_is_passed_over(cast: Cast, cluster: Cluster) -> None:
    Gpu.objects.filter(index=0).update(unhealthy="XID 79")
    world = World(cluster, pod("p", container(60, 10)), pod("q", container(60, 10)))
    assert (world.ask("p")["gpus"], world.ask("q")["gpus"]) == ("1", None)
    Gpu.objects.filter(index=0).update(unhealthy="", present=False)
    world.promises.refresh()
    assert world.ask("q")["gpus"] is None
    Gpu.objects.filter(index=0).update(present=True)
    world.promises.refresh()
    assert world.ask("q")["gpus"] == "0"


NOW = timezone.now()


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        ({"cordoned": True}, "cordoned"),
        ({"fenced_at": NOW}, "fenced"),
        ({"unhealthy": "DiskFull"}, "unhealthy"),
        ({"last_seen_at": NOW - timedelta(hours=1)}, "lost"),
        ({"last_seen_at": None}, "awaiting-agent"),
    ],
)
def test_a_node_that_takes_nothing_new_gets_no_pod(
    cast: Cast, cluster: Cluster, machine: Machine, facts: dict[str, Any], state: str
) -> None:
    Node.objects.update(**facts)
    assert Node.objects.get().state == state
    world = World(cluster, pod("p", container(60, 10)))
    refused = world.ask("p")
    assert refused["gpus"] is None
    if cluster.placement == "gpu-admission":
        assert "closed nodes and GPUs count too" in refused["FailedNodes"]["gpu1"]
    Node.objects.update(
        cordoned=False,
        fenced_at=None,
        unhealthy="",
        last_seen_at=timezone.now(),
    )
    world.promises.refresh()
    assert world.ask("p")["gpus"] == "0"
