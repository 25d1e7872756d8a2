"""A resized pod on a real control plane: kube-scheduler binds the next pod to the GPU that has room for it."""

from collections.abc import Iterator

import pytest
from django.db import connection

from apps.clusters.core.gpu_admission import Chosen
from apps.clusters.extender.promises import Promises
from apps.clusters.kube.client import Client
from apps.clusters.kube.mirror import Mirror
from apps.clusters.kube.pods import PodState
from apps.clusters.kube.reflector import NODES, PODS, Reflector
from apps.clusters.models import Cluster, PodClaim
from apps.clusters.services import bindings, clusters, resizing
from apps.clusters.watches import Watches
from apps.clusters.watching import Watched
from apps.quotas.principals import SYSTEM
from tests.cast import Cast, Machine, give_plenty
from tests.clusters.cluster_objects import add_namespace, add_node, ask, placement_of, pod, remove
from tests.clusters.control_plane import ControlPlane
from tests.clusters.extenders import Listening
from tests.clusters.test_watches import until
from tests.processes import eventually

pytestmark = [pytest.mark.control_plane, pytest.mark.serial, pytest.mark.timeout(300)]


class Closing(Promises):
    """Promises that keep no session in the listener's threads: the test's database could not be removed."""

    def keep(self, pod: PodState, node: str, chosen: Chosen) -> bool:
        try:
            return super().keep(pod, node, chosen)
        finally:
            connection.close()


@pytest.fixture(scope="module")
def client(control_plane: ControlPlane) -> Client:
    found = control_plane.client()
    add_node(found, "gpu1", gpus=2, units=96)
    add_namespace(found, "ml")
    return found


@pytest.fixture
def cluster(real_cast: Cast, control_plane: ControlPlane, client: Client, extender: Listening) -> Iterator[Cluster]:
    """Connect the cluster; the extender promises in the ledger."""
    give_plenty(real_cast.acme)
    Machine("gpu1", real_cast.pool, gpus=2)
    kubeconfig = control_plane.kubeconfig()
    made = clusters.connect(principal=SYSTEM, name="kube", pool=real_cast.pool, kubeconfig=kubeconfig)
    bindings.bind(principal=SYSTEM, cluster=made, namespace="ml", tenant=real_cast.acme)
    mirror = Mirror()
    reflectors = [
        Reflector(client, kind, see=mirror.see, fail=lambda _, text: extender.troubles.append(text))
        for kind in (PODS, NODES)
    ]
    for reflector in reflectors:
        reflector.start()
    assert eventually(lambda: mirror.ready, seconds=30)
    served = extender.clusters["kube"]
    before = served.mirror, served.promises
    served.mirror, served.promises = mirror, Closing(made, mirror)
    served.promises.refresh()
    yield made
    served.mirror, served.promises = before
    for reflector in reflectors:
        reflector.stop()


def test_the_next_pod_is_bound_to_the_gpu_that_has_room(client: Client, cluster: Cluster) -> None:
    watches = Watches(Watched)
    try:
        ask(client, "ml", "grows", core=30, memory=10)
        assert placement_of(client, "ml", "grows") == ("gpu1", "0")
        until(watches, lambda: PodClaim.objects.filter(pod="grows", claim__isnull=False).exists())
        client.patch("/api/v1/namespaces/ml/pods/grows", {"metadata": {"annotations": {resizing.CORE: "95"}}})
        until(watches, lambda: PodClaim.objects.filter(pod="grows", claim__core_request=95).exists())
        ask(client, "ml", "next", core=30, memory=10)
        assert placement_of(client, "ml", "next") == ("gpu1", "1")
        until(watches, lambda: PodClaim.objects.filter(pod="next", claim__isnull=False).exists())
        assert pod(client, "ml", "next")["spec"]["nodeName"] == "gpu1"
    finally:
        remove(client, "ml", "grows", "next")
        watches.stop()
