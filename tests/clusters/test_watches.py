"""The watch over clusters, on a real control plane: a pod that its scheduler binds enters the ledger, and leaves it."""

import time
from collections.abc import Callable, Iterator

import pytest
from django.utils import timezone

from apps.clusters.kube.client import Client
from apps.clusters.models import Cluster, PodClaim
from apps.clusters.services import bindings, clusters
from apps.clusters.watches import Watches
from apps.clusters.watching import Watched
from apps.nodes.models import Node
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.sharing import change_pool
from apps.scheduling.services.cycles.rounds import run_round
from apps.scheduling.services.reclaiming import preemption
from tests.cast import Cast, Machine, assert_books_agree, give_plenty, used
from tests.cast import ask as ask_outside
from tests.clusters.cluster_objects import add_namespace, add_node, ask, end_as_a_kubelet, placement_of, pod, remove
from tests.clusters.control_plane import ControlPlane
from tests.processes import eventually

pytestmark = [pytest.mark.control_plane, pytest.mark.serial, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def client(control_plane: ControlPlane) -> Client:
    found = control_plane.client()
    add_node(found, "gpu1", gpus=4, units=96)
    add_namespace(found, "ml")
    return found


@pytest.fixture
def machine(real_cast: Cast) -> Machine:
    give_plenty(real_cast.acme)
    return Machine("gpu1", real_cast.pool)


@pytest.fixture
def cluster(real_cast: Cast, control_plane: ControlPlane, client: Client) -> Cluster:
    kubeconfig = control_plane.kubeconfig()
    made = clusters.connect(principal=SYSTEM, name="kube", pool=real_cast.pool, kubeconfig=kubeconfig)
    bindings.bind(principal=SYSTEM, cluster=made, namespace="ml", tenant=real_cast.acme)
    return made


@pytest.fixture
def watches(cluster: Cluster) -> Iterator[Watches]:
    made = Watches(Watched)
    yield made
    made.stop()


def until(watches: Watches, condition: Callable[[], bool], *, seconds: float = 60) -> None:
    """Run the command's check until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, list(PodClaim.objects.values())
        watches.refresh()
        time.sleep(0.2)


def test_a_bound_pod_is_charged_and_a_removed_one_is_not(
    real_cast: Cast, client: Client, machine: Machine, cluster: Cluster, watches: Watches
) -> None:
    ask(client, "ml", "before", core=30, memory=10)
    placement_of(client, "ml", "before")
    until(watches, lambda: Claim.objects.filter(state="assigned").count() == 1)
    ask(client, "ml", "after", core=200)
    _, gpus = placement_of(client, "ml", "after")
    until(watches, lambda: Claim.objects.filter(state="assigned").count() == 2)
    machine.obey()
    row = PodClaim.objects.get(pod="after")
    assert row.gpu_indexes == [int(index) for index in gpus.split(",")]
    assert used(real_cast.acme)["core_percent"] == 230
    assert_books_agree()
    cluster.refresh_from_db()
    assert (cluster.state, cluster.kubernetes_version[:1]) == ("connected", "v")

    remove(client, "ml", "before", "after")
    until(watches, lambda: not PodClaim.objects.live().exists())
    machine.obey()
    assert used(real_cast.acme)["core_percent"] == 0
    assert_books_agree()


@pytest.mark.usefixtures("machine", "cluster")
def test_a_restart_of_the_api_server_loses_no_pod(
    client: Client, watches: Watches, control_plane: ControlPlane
) -> None:
    ask(client, "ml", "stays", core=30, memory=10)
    ask(client, "ml", "goes", core=30, memory=10)
    for name in ("stays", "goes"):
        placement_of(client, "ml", name)
    until(watches, lambda: PodClaim.objects.live().count() == 2)
    control_plane.stop_one("kube-apiserver")
    until(watches, lambda: Cluster.objects.get().state == "unreachable")
    control_plane.start_api_server()
    remove(client, "ml", "goes")
    until(watches, lambda: list(PodClaim.objects.live().values_list("pod", flat=True)) == ["stays"])
    until(watches, lambda: Cluster.objects.get().state == "connected")
    remove(client, "ml", "stays")
    until(watches, lambda: not PodClaim.objects.live().exists())
    assert_books_agree()


def test_a_pod_that_must_make_room_is_evicted_and_told_why(
    real_cast: Cast, client: Client, machine: Machine, cluster: Cluster, watches: Watches
) -> None:
    change_pool(principal=SYSTEM, pool=real_cast.pool, preempt_by_priority=True)
    ask(client, "ml", "goes", core=400)
    placement_of(client, "ml", "goes")
    until(watches, lambda: Claim.objects.filter(state="assigned").exists())
    machine.obey()
    urgent = ask_outside(real_cast, priority=5, core_request=100, memory_mib=1024, when_over_quota="wait")
    Node.objects.update(last_seen_at=timezone.now())
    run_round(real_cast.pool)
    preemption.drive()
    Claim.objects.filter(preempt_at__isnull=False).update(preempt_at=timezone.now())
    until(watches, lambda: "deletionTimestamp" in pod(client, "ml", "goes")["metadata"])
    path, about = "/api/v1/namespaces/ml/events", "involvedObject.name=goes"
    assert eventually(lambda: "is evicted" in str(client.get(path, fieldSelector=about)), seconds=30)
    end_as_a_kubelet(client, "ml")
    until(watches, lambda: not PodClaim.objects.live().exists())
    machine.obey()
    Node.objects.update(last_seen_at=timezone.now())
    run_round(real_cast.pool)
    urgent.refresh_from_db()
    assert urgent.state == "assigned"
    assert_books_agree()
